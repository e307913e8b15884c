//! What one run moves. The connecting side decides and tells the other.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The verb under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// SEND, every other one with immediate data.
    Send,
    /// RDMA WRITE, told by a SEND behind it, and RDMA WRITE with immediate, in turns.
    Write,
    /// RDMA READ.
    Read,
    /// FETCH AND ADD, then COMPARE AND SWAP that hits and misses in turns.
    Atomic,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
        })
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The verb.
    pub operation: Operation,
    /// Bytes of one message; atomics have eight whatever this says.
    pub size: u32,
    /// Messages in each direction.
    pub count: u32,
    /// Largest path MTU to use, in bytes.
    pub mtu: u32,
}

impl Plan {
    /// Largest message, so that its slots fit the guest's memory.
    pub const MAX_SIZE: u32 = 64 << 20;
    /// Most messages; sequence numbers travel in 31 bits.
    pub const MAX_COUNT: u32 = 1 << 30;
    /// Messages under way at a time, when they are small.
    const MAX_SLOTS: u32 = 16;
    /// Memory for the messages under way.
    const SLOTS_BYTES: u32 = 16 << 20;

    /// Refuses a plan that cannot be carried out.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if self.size > Self::MAX_SIZE {
            return Err(format!("Messages of {} bytes are larger than {}", self.size, Self::MAX_SIZE));
        }
        if self.count > Self::MAX_COUNT {
            return Err(format!("{} messages are more than {}", self.count, Self::MAX_COUNT));
        }
        mtu_code(self.mtu).map(|_| ()).ok_or_else(|| format!("{} is not a path MTU", self.mtu))
    }

    /// Messages under way at a time.
    pub fn slots(&self) -> u32 {
        (Self::SLOTS_BYTES / self.size.max(1)).clamp(2, Self::MAX_SLOTS)
    }
}

/// How verbs write a path MTU (`enum ibv_mtu`).
pub fn mtu_code(bytes: u32) -> Option<u32> {
    [256, 512, 1024, 2048, 4096].into_iter().zip(1..).find_map(|(mtu, code)| (mtu == bytes).then_some(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { operation: Operation::Send, size: 65_536, count: 10, mtu: 4096 };

    #[test]
    fn plan_from_a_peer_is_checked() {
        assert_eq!(PLAN.check(), Ok(()));
        assert!(Plan { size: u32::MAX, ..PLAN }.check().is_err());
        assert!(Plan { count: u32::MAX, ..PLAN }.check().is_err());
        assert!(Plan { mtu: 1500, ..PLAN }.check().is_err());
    }

    #[test]
    fn slots_of_large_messages_stay_small_in_sum_and_at_least_two() {
        assert_eq!(PLAN.slots(), 16);
        assert_eq!(Plan { size: 8 << 20, ..PLAN }.slots(), 2);
        assert_eq!(Plan { size: 64 << 20, ..PLAN }.slots(), 2);
        assert_eq!(Plan { size: 0, ..PLAN }.slots(), 16);
    }
}
