//! What tests of RDMA devices in guests have in common: the device and its GIDs, programs that run in pairs, and
//! what those programs print.

mod device;
mod figures;
mod host;
mod pair;
mod program;

pub use device::{DeviceError, End, GidKind, RdmaDevice};
pub use figures::{
    Bandwidth, DeviceInfo, Latency, VerifierReport, bandwidth, device_info, ping_lines, pingpong, verifier,
};
pub use host::{HostObject, HostRdma};
pub use pair::{Listening, Pair, PairOutput, RunningPair, Started};
pub use program::{Program, Style};
