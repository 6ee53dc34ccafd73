//! Services that ports offer, by name and number.

use std::collections::BTreeMap;
use std::time::Duration;

use wire::mad::{Method, Status};
use wire::sa::{Record, ServiceRecord};
use wire::{Gid, PKey};

use super::directory::Directory;
use super::request::{Request, Table};

/// Services that one port may register.
const OF_A_PORT: usize = 32;

type Key = (u64, Gid, u16);

#[derive(Debug)]
struct Service {
    record: ServiceRecord,
    until: Option<Duration>,
}

/// All services.
#[derive(Debug, Default)]
pub(super) struct Services(BTreeMap<Key, Service>);

fn key(record: &ServiceRecord) -> Key {
    (
        record.service_id,
        record.service_gid,
        record.service_pkey.partition(),
    )
}

impl Services {
    /// Registers a service of the requester, or renews it (IBA 15.2.5.14).
    pub(super) fn register(
        &mut self,
        request: &Request<'_>,
        directory: &Directory,
        now: Duration,
        table: &mut Table,
    ) -> Result<(), Status> {
        const NEEDED: u64 =
            ServiceRecord::SERVICE_ID | ServiceRecord::SERVICE_GID | ServiceRecord::SERVICE_PKEY;
        let mut record: ServiceRecord = request.record()?;
        if !request.gives(NEEDED) {
            return Err(Status::SA_INSUFFICIENT_COMPONENTS);
        }
        let port = directory.by_gid(record.service_gid);
        let port = port.ok_or(Status::SA_INVALID_GID)?;
        if port != request.requester && !request.trusted {
            return Err(Status::SA_DENIED);
        }
        if !directory.port(port).holds(full(record.service_pkey)) {
            return Err(Status::SA_DENIED);
        }
        if !request.gives(ServiceRecord::LEASE) || record.lease == 0 {
            record.lease = ServiceRecord::FOREVER;
        }
        if !request.gives(ServiceRecord::SERVICE_KEY) {
            record.service_key = 0;
        }
        let of_port = |(_, gid, _): &&Key| *gid == record.service_gid;
        match self.0.get(&key(&record)) {
            Some(there) if there.record.service_key != record.service_key => {
                return Err(Status::SA_DENIED);
            }
            None if self.0.keys().filter(of_port).count() >= OF_A_PORT => {
                return Err(Status::SA_NO_RESOURCES);
            }
            _ => {}
        }
        let until = (record.lease != ServiceRecord::FOREVER)
            .then(|| now + Duration::from_secs(u64::from(record.lease)));
        self.0.insert(key(&record), Service { record, until });
        table.begin::<ServiceRecord>(Method::SET);
        table.push(&record);
        Ok(())
    }

    /// Removes a service of the requester.
    pub(super) fn remove(
        &mut self,
        request: &Request<'_>,
        directory: &Directory,
        table: &mut Table,
    ) -> Result<(), Status> {
        let record: ServiceRecord = request.record()?;
        let own =
            request.trusted || directory.by_gid(record.service_gid) == Some(request.requester);
        if !own {
            return Err(Status::SA_DENIED);
        }
        match self.0.get(&key(&record)) {
            None => return Err(Status::SA_NO_RECORDS),
            Some(there) if there.record.service_key != record.service_key && !request.trusted => {
                return Err(Status::SA_DENIED);
            }
            Some(_) => {}
        }
        table.begin::<ServiceRecord>(Method::DELETE);
        if let Some(service) = self.0.remove(&key(&record)) {
            table.push(&service.record);
        }
        Ok(())
    }

    /// Adds the services of partitions that the requester is in.
    pub(super) fn answer(
        &self,
        request: &Request<'_>,
        directory: &Directory,
        now: Duration,
        table: &mut Table,
    ) -> Result<(), Status> {
        table.begin::<ServiceRecord>(request.method);
        let requester = directory.port(request.requester);
        for service in self.0.values() {
            let mut record = service.record;
            if !request.trusted && !requester.holds(full(record.service_pkey)) {
                continue;
            }
            if let Some(until) = service.until {
                record.lease = until.saturating_sub(now).as_secs() as u32;
            }
            if !request.trusted {
                record.service_key = 0;
            }
            table.offer(request, &record);
            if table.is_full() {
                break;
            }
        }
        Ok(())
    }

    /// Forgets what has expired, and whose port is gone.
    pub(super) fn expire(&mut self, directory: &Directory, now: Duration) {
        self.0.retain(|(_, gid, _), service| {
            service.until.is_none_or(|until| until > now) && directory.by_gid(*gid).is_some()
        });
    }

    /// When the next one expires.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.0.values().filter_map(|service| service.until).min()
    }
}

/// A key that any member of the partition matches.
fn full(pkey: PKey) -> PKey {
    PKey::new(pkey.value() | 0x8000)
}

const _: () = assert!(ServiceRecord::SIZE <= wire::sa::DATA_SIZE);
