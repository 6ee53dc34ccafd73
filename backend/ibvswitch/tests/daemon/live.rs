//! Moves of VMs that run, step by step over the control socket.

use std::path::Path;

use ibvswitch::control::{
    Client, ClientError, LiveDone, LiveMove, LiveRequest, LiveStep, Request, Response,
};

use super::Daemon;

/// Steps of a VM with an HCA.
pub const STEPS: [LiveStep; 5] = [
    LiveStep::Stop,
    LiveStep::Save,
    LiveStep::Move,
    LiveStep::Restore,
    LiveStep::Resume,
];

/// A connection that carries a move.
pub struct Move(Client);

impl Move {
    pub fn connect(daemon: &Daemon) -> Self {
        let socket = Path::new(daemon.dir()).join("control.sock");
        Self(Client::connect(&socket).expect("a daemon"))
    }

    /// Begins to move what a VM has: names, each alone or with a `=` and the name of its destination.
    pub fn begin(daemon: &Daemon, vms: &[&str], to: &str) -> Result<Self, String> {
        let mut client = Self::connect(daemon);
        let moves = vms.iter().map(|vm| {
            let (vm, vf) = vm
                .split_once('=')
                .map_or((*vm, None), |(vm, vf)| (vm, Some(vf)));
            LiveMove {
                vm: vm.to_owned(),
                vf: vf.map(str::to_owned),
            }
        });
        client.ask(&Request::Live(LiveRequest {
            moves: moves.collect(),
            to: to.to_owned(),
        }))?;
        Ok(client)
    }

    fn ask(&mut self, request: &Request) -> Result<Response, String> {
        self.0.ask(request).map_err(|error| match error {
            ClientError::Refused { message, .. } => message,
            error => panic!("{error}"),
        })
    }

    pub fn step(&mut self, step: LiveStep) -> Result<LiveDone, String> {
        match self.ask(&Request::LiveStep { step })? {
            Response::Live(done) => Ok(done),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until what was begun by others has come to its end.
    pub fn settle(daemon: &Daemon, vm: &str) {
        let settled = Self::connect(daemon).ask(&Request::LiveSettle { vm: vm.to_owned() });
        assert!(matches!(settled, Ok(Response::LiveSettled {})));
    }
}
