//! What can be told of a subnet from its configuration.

use std::time::Instant;

use crate::config::Config;
use crate::control::{Counters, FabricStatus, Objects, Status, StatusSource, Topology, VfStatus};

#[derive(Debug)]
pub(crate) struct Configured {
    config: Config,
    started: Instant,
}

impl Configured {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            started: Instant::now(),
        }
    }
}

impl StatusSource for Configured {
    fn status(&self) -> Status {
        let config = &self.config;
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            runtime_dir: config.runtime_dir.display().to_string(),
            fabric: FabricStatus {
                switches: 1,
                subnet_prefix: wire::Guid::from(config.fabric.subnet_prefix).to_string(),
                sm_lid: config.manager.lid.value(),
                sweeps: 0,
                smps: 0,
            },
            vfs: config
                .vfs()
                .map(|(hypervisor, vf)| VfStatus {
                    name: vf.name.clone(),
                    hypervisor: hypervisor.name.clone(),
                    state: "Down".to_owned(),
                    lid: 0,
                    sm_lid: 0,
                    node_guid: vf.guid.to_string(),
                    port_guid: vf.guid.to_string(),
                    pkeys: vf.pkeys.iter().map(ToString::to_string).collect(),
                    doorbells: vf.doorbells,
                    socket: vf.socket.display().to_string(),
                    client_connected: false,
                    objects: Objects::default(),
                    counters: Counters::default(),
                })
                .collect(),
        }
    }

    fn topology(&self) -> Topology {
        Topology {
            nodes: Vec::new(),
            links: Vec::new(),
        }
    }
}
