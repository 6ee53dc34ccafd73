//! Engines of VFs, on the control socket.

use serde::{Deserialize, Serialize};

/// The engines, where there are several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// By number.
    pub engines: Vec<EngineStatus>,
    /// VFs that exchange more with another engine's VFs than with their own one's, or with none.
    pub suggestions: Vec<PinSuggestion>,
}

/// An engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Names of the VFs that live there.
    pub vfs: Vec<String>,
    /// Milliseconds in which it has had work, since the daemon began to serve.
    pub busy_ms: u64,
    /// Frames that it has sent to other engines and to ports without one.
    pub crossing_frames: u64,
    /// Bytes of all packets of those, with headers.
    pub crossing_bytes: u64,
}

/// A VF that would do better in another engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinSuggestion {
    /// Its name.
    pub vf: String,
    /// The number of the engine.
    pub engine: u32,
    /// Bytes that the VF has exchanged with VFs of that engine, since a VF moved last.
    pub crossing_bytes: u64,
    /// Bytes that it has exchanged with anybody, since then.
    pub bytes: u64,
}

/// Times of the calls of the engine with the longest, since the last question; the first question begins to time them.
/// During a call nobody else has the engine. Only the time counts in which the thread had a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCalls {
    /// Nanoseconds that one call in ten thousand exceeds.
    pub long_ns: u64,
    /// Nanoseconds of the longest call. The host of a virtual machine takes its processor away for milliseconds, which count.
    pub longest_ns: u64,
}

/// Moves a VF to an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinRequest {
    /// Its name.
    pub vf: String,
    /// The engine's number.
    pub engine: u32,
}

/// Present engines of VFs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// The VF, and those that share its port.
    pub vfs: Vec<String>,
    /// The engine's number.
    pub engine: u32,
    /// Microseconds that all engines stood still.
    pub pause_us: u64,
}
