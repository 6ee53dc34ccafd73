//! A requester as plain data, and again from such.

use std::collections::VecDeque;

use super::super::room::MAX_OUTSTANDING;
use super::{Finished, MAX_READS, Request, Requester, Term, packets_of};
use crate::image::restore::{later, send_request};
use crate::image::{AwayImageV1, FinishedImageV1, RequestImageV1};
use crate::memory::lending::Lending;
use crate::objects::qp::attributes::{QpAttr, Transport};
use crate::objects::work::MAX_MESSAGE;

impl Requester {
    /// Its image. Times count from `now` on.
    pub fn save(&self, now: u64) -> AwayImageV1 {
        let left = |at: u64| at.saturating_sub(now);
        AwayImageV1 {
            requests: self
                .requests
                .iter()
                .map(|request| RequestImageV1 {
                    wr: (*request.wr).clone(),
                    psn: request.psn,
                    packets: request.packets,
                    done: request.done,
                    fault: request.fault,
                })
                .collect(),
            next: (self.next.0 as u64, self.next.1),
            newest: self.newest,
            reached: self.reached,
            asked: self.asked.iter().copied().collect(),
            strayed: self.strayed,
            retries_left: self.retries_left,
            rnr_left: self.rnr_left,
            pause: self.pause.map(left),
            overdue: self.term.map(|term| left(term.until)),
            finished: self
                .finished
                .iter()
                .map(|finished| FinishedImageV1 {
                    wr: (*finished.wr).clone(),
                    status: finished.status,
                    byte_len: finished.byte_len,
                })
                .collect(),
        }
    }

    /// The side that an image has.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn restore(
        image: AwayImageV1,
        attr: &QpAttr,
        transport: Transport,
        now: u64,
    ) -> Result<Self, &'static str> {
        const LIST: &str = "a request under way has longer lists than there are";
        if image.requests.len() + image.finished.len() > MAX_OUTSTANDING as usize {
            return Err("it has more requests under way than a function may have");
        }
        let mut requests = VecDeque::with_capacity(image.requests.len());
        let mut expected = image
            .requests
            .first()
            .map_or(image.newest, |first| first.psn);
        for request in image.requests {
            let wr = send_request(request.wr).map_err(|_| LIST)?;
            let RequestImageV1 {
                psn,
                packets,
                done,
                fault,
                ..
            } = request;
            let len = wr.payload_len();
            let sendable = len <= MAX_MESSAGE && transport.refuses(&mut wr.clone()).is_none();
            let needed = packets_of(&wr, len, attr);
            let sound = match fault {
                None => sendable && packets == needed && done < packets,
                Some(_) => done <= packets && (packets == 0 || sendable && packets == needed),
            };
            if !sound || psn != expected {
                return Err("the packets of a request under way are not its own");
            }
            expected = psn.plus(packets);
            requests.push_back(Request {
                wr,
                psn,
                len,
                packets,
                done,
                fault,
                lending: Lending::default(),
                again: true,
                read: (0, Vec::new()),
            });
        }
        let next = (image.next.0 as usize, image.next.1);
        let most = match requests.get(next.0) {
            Some(request) => request.packets,
            None => 0,
        };
        if expected != image.newest || next.0 > requests.len() || next.1 > most {
            return Err("the next packet to be sent belongs to no request");
        }
        if image.asked.len() > MAX_READS {
            return Err("it has asked for more answers than it may at a time");
        }
        let mut finished = VecDeque::with_capacity(image.finished.len());
        for image in image.finished {
            finished.push_back(Finished {
                wr: send_request(image.wr).map_err(|_| LIST)?,
                status: image.status,
                byte_len: image.byte_len,
            });
        }
        let later = |left: u64| later(now, left);
        Ok(Self {
            requests,
            next,
            newest: image.newest,
            reached: image.reached,
            asked: image.asked.into(),
            strayed: image.strayed,
            exhausted: false,
            retries_left: image.retries_left,
            rnr_left: image.rnr_left,
            pause: image.pause.map(later),
            term: { image.overdue }.map(|left| Term::new(now, later(left))),
            looks_again: Some(now),
            finished,
            absent: None,
            reads_on: false,
        })
    }
}
