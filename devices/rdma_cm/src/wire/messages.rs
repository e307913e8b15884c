//! What is in the messages (IBTA volume 1, section 12.6).

use verbs::{Gid, Mtu, Qpn};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BODY, Error};

/// The local identifier of ports that have none, as on Ethernet.
const PERMISSIVE_LID: u16 = 0xffff;
/// The only partition.
const DEFAULT_PKEY: u16 = 0xffff;
/// A rate of 10 Gb/s (`enum ib_rate`), which nobody looks at on Ethernet.
const RATE: u32 = 3;
/// Of a request: the transport is a reliable connection.
const RELIABLE: u32 = 0;

/// The identifiers of a connection at both ends, the sender's first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// The sender's.
    pub local: u32,
    /// The receiver's; 0 in a rejection of a request that nobody has looked at.
    pub remote: u32,
}

impl Ids {
    pub(super) fn parse(body: &[u8; BODY]) -> Self {
        let [local, remote] = [0, 4].map(|at| {
            let word = body[at..].first_chunk().copied().unwrap_or_default();
            u32::from_be_bytes(word)
        });
        Self { local, remote }
    }

    pub(super) fn emit(self, body: &mut [u8; BODY]) {
        body[..4].copy_from_slice(&self.local.to_be_bytes());
        body[4..8].copy_from_slice(&self.remote.to_be_bytes());
    }
}

/// Where DREQ has the queue pair number.
const DISCONNECT_QPN: std::ops::Range<usize> = 8..12;

pub(super) fn disconnect_qpn(body: &[u8; BODY]) -> Qpn {
    let word = body[DISCONNECT_QPN].first_chunk().copied().unwrap_or_default();
    Qpn(u32::from_be_bytes(word) >> 8)
}

pub(super) fn set_disconnect_qpn(body: &mut [u8; BODY], qpn: Qpn) {
    body[DISCONNECT_QPN].copy_from_slice(&(qpn.0 << 8).to_be_bytes());
}

macro_rules! body {
    ($name:ident { $($field:ident: $ty:ty = $offset:literal,)* }) => {
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        struct $name {
            $($field: $ty,)*
        }

        const _: () = {
            assert!(size_of::<$name>() == BODY);
            $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
        };

        impl $name {
            fn of(body: &[u8; BODY]) -> &Self {
                Self::ref_from_bytes(body).expect("the sizes are equal")
            }
        }
    };
}

body!(RequestBody {
    comm_id: U32 = 0,
    reserved_4: U32 = 4,
    service_id: U64 = 8,
    ca_guid: U64 = 16,
    reserved_24: U32 = 24,
    qkey: U32 = 28,
    qpn_resources: U32 = 32,
    eecn_depth: U32 = 36,
    remote_eecn_timing: U32 = 40,
    psn_timing: U32 = 44,
    pkey: U16 = 48,
    mtu_rnr: u8 = 50,
    retries_srq: u8 = 51,
    local_lid: U16 = 52,
    remote_lid: U16 = 54,
    local_gid: [u8; 16] = 56,
    remote_gid: [u8; 16] = 72,
    flow_rate: U32 = 88,
    traffic_class: u8 = 92,
    hop_limit: u8 = 93,
    sl_subnet: u8 = 94,
    ack_timeout: u8 = 95,
    alternate: [u8; 44] = 96,
    private: [u8; 92] = 140,
});

/// REQ: asks for a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The sender's identifier of the connection.
    pub comm_id: u32,
    /// What it wants to connect to.
    pub service_id: u64,
    /// The sender's device.
    pub ca_guid: u64,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// Reads and atomics that it can serve at a time.
    pub responder_resources: u8,
    /// Reads and atomics that it wants to have outstanding.
    pub initiator_depth: u8,
    /// Time-out code (4.096 µs · 2^n) within which the receiver shall answer.
    pub remote_response_timeout: u8,
    /// The first PSN that the sender expects, and so that the receiver is to send.
    pub psn: u32,
    /// Time-out code within which the sender answers.
    pub local_response_timeout: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// Path MTU.
    pub mtu: Mtu,
    /// How often a message is repeated.
    pub max_cm_retries: u8,
    /// Whether its queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's address.
    pub local_gid: Gid,
    /// The receiver's address.
    pub remote_gid: Gid,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Acknowledge time-out code of the path.
    pub ack_timeout: u8,
    /// Private data.
    pub private: [u8; 92],
}

impl Request {
    pub(super) fn parse(body: &[u8; BODY]) -> Result<Self, Error> {
        let b = RequestBody::of(body);
        let timing = b.remote_eecn_timing.get();
        if timing >> 1 & 3 != RELIABLE {
            return Err(Error::Transport);
        }
        Ok(Self {
            comm_id: b.comm_id.get(),
            service_id: b.service_id.get(),
            ca_guid: b.ca_guid.get(),
            qpn: Qpn(b.qpn_resources.get() >> 8),
            responder_resources: b.qpn_resources.get() as u8,
            initiator_depth: b.eecn_depth.get() as u8,
            remote_response_timeout: (timing >> 3) as u8 & 31,
            psn: b.psn_timing.get() >> 8,
            local_response_timeout: b.psn_timing.get() as u8 >> 3,
            retry_count: b.psn_timing.get() as u8 & 7,
            rnr_retry_count: b.mtu_rnr & 7,
            mtu: Mtu::from_verbs(u32::from(b.mtu_rnr >> 4)).unwrap_or(Mtu::B256),
            max_cm_retries: b.retries_srq >> 4,
            srq: b.retries_srq & 8 != 0,
            local_gid: Gid(b.local_gid),
            remote_gid: Gid(b.remote_gid),
            hop_limit: b.hop_limit,
            ack_timeout: b.ack_timeout >> 3,
            private: b.private,
        })
    }

    pub(super) fn emit(&self, body: &mut [u8; BODY]) {
        let timing = u32::from(self.remote_response_timeout & 31) << 3 | RELIABLE << 1 | 1;
        let own_timing = (self.local_response_timeout & 31) << 3 | self.retry_count & 7;
        let layout = RequestBody {
            comm_id: self.comm_id.into(),
            service_id: self.service_id.into(),
            ca_guid: self.ca_guid.into(),
            qpn_resources: (self.qpn.0 << 8 | u32::from(self.responder_resources)).into(),
            eecn_depth: u32::from(self.initiator_depth).into(),
            remote_eecn_timing: timing.into(),
            psn_timing: (self.psn << 8 | u32::from(own_timing)).into(),
            pkey: DEFAULT_PKEY.into(),
            mtu_rnr: (self.mtu as u8) << 4 | self.rnr_retry_count & 7,
            retries_srq: (self.max_cm_retries & 15) << 4 | u8::from(self.srq) << 3,
            local_lid: PERMISSIVE_LID.into(),
            remote_lid: PERMISSIVE_LID.into(),
            local_gid: self.local_gid.0,
            remote_gid: self.remote_gid.0,
            flow_rate: RATE.into(),
            hop_limit: self.hop_limit,
            ack_timeout: (self.ack_timeout & 31) << 3,
            private: self.private,
            ..RequestBody::new_zeroed()
        };
        body.copy_from_slice(layout.as_bytes());
    }
}

body!(ReplyBody {
    comm_id: U32 = 0,
    remote_comm_id: U32 = 4,
    qkey: U32 = 8,
    qpn: U32 = 12,
    eecn: U32 = 16,
    psn: U32 = 20,
    responder_resources: u8 = 24,
    initiator_depth: u8 = 25,
    delay_flow: u8 = 26,
    rnr_srq: u8 = 27,
    ca_guid: U64 = 28,
    private: [u8; 196] = 36,
});

/// REP: accepts a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Identifiers.
    pub ids: Ids,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The first PSN that the sender expects, and so that the receiver is to send.
    pub psn: u32,
    /// Reads and atomics that it can serve at a time.
    pub responder_resources: u8,
    /// Reads and atomics that it will have outstanding.
    pub initiator_depth: u8,
    /// Acknowledge delay code.
    pub ack_delay: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// Whether its queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's device.
    pub ca_guid: u64,
    /// Private data.
    pub private: [u8; 196],
}

impl Reply {
    pub(super) fn parse(body: &[u8; BODY]) -> Self {
        let b = ReplyBody::of(body);
        Self {
            ids: Ids::parse(body),
            qpn: Qpn(b.qpn.get() >> 8),
            psn: b.psn.get() >> 8,
            responder_resources: b.responder_resources,
            initiator_depth: b.initiator_depth,
            ack_delay: b.delay_flow >> 3,
            rnr_retry_count: b.rnr_srq >> 5,
            srq: b.rnr_srq & 16 != 0,
            ca_guid: b.ca_guid.get(),
            private: b.private,
        }
    }

    pub(super) fn emit(&self, body: &mut [u8; BODY]) {
        let layout = ReplyBody {
            comm_id: self.ids.local.into(),
            remote_comm_id: self.ids.remote.into(),
            qkey: 0.into(),
            qpn: (self.qpn.0 << 8).into(),
            eecn: 0.into(),
            psn: (self.psn << 8).into(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            delay_flow: (self.ack_delay & 31) << 3 | 1,
            rnr_srq: (self.rnr_retry_count & 7) << 5 | u8::from(self.srq) << 4,
            ca_guid: self.ca_guid.into(),
            private: self.private,
        };
        body.copy_from_slice(layout.as_bytes());
    }
}

/// Why a request or reply is refused. Reasons that nobody acts upon are kept as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u16);

impl Reason {
    /// No queue pair left.
    pub const NO_QP: Self = Self(1);
    /// Given up for lack of answers.
    pub const TIMEOUT: Self = Self(4);
    /// Nobody serves that.
    pub const INVALID_SERVICE: Self = Self(8);
    /// The receiver has a connection with that queue pair already.
    pub const STALE: Self = Self(10);
    /// Refused by whoever serves it.
    pub const CONSUMER: Self = Self(28);
}

body!(RejectBody {
    comm_id: U32 = 0,
    remote_comm_id: U32 = 4,
    rejected: u8 = 8,
    info_length: u8 = 9,
    reason: U16 = 10,
    info: [u8; 72] = 12,
    private: [u8; 148] = 84,
});

/// REJ: refuses a request or a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Identifiers; those that the sender has not are 0.
    pub ids: Ids,
    /// Whether a reply is refused rather than a request.
    pub of_reply: bool,
    /// Why.
    pub reason: Reason,
    /// Private data.
    pub private: [u8; 148],
}

impl Reject {
    pub(super) fn parse(body: &[u8; BODY]) -> Self {
        let b = RejectBody::of(body);
        Self {
            ids: Ids::parse(body),
            of_reply: b.rejected >> 6 == 1,
            reason: Reason(b.reason.get()),
            private: b.private,
        }
    }

    pub(super) fn emit(&self, body: &mut [u8; BODY]) {
        let layout = RejectBody {
            comm_id: self.ids.local.into(),
            remote_comm_id: self.ids.remote.into(),
            rejected: u8::from(self.of_reply) << 6,
            info_length: 0,
            reason: self.reason.0.into(),
            info: [0; 72],
            private: self.private,
        };
        body.copy_from_slice(layout.as_bytes());
    }
}

/// MRA: the message is received, and its answer takes longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoreTime {
    /// Identifiers.
    pub ids: Ids,
    /// Whether it is about a reply rather than a request.
    pub of_reply: bool,
    /// Time-out code of how much longer.
    pub service_timeout: u8,
}

impl MoreTime {
    pub(super) fn parse(body: &[u8; BODY]) -> Self {
        Self { ids: Ids::parse(body), of_reply: body[8] >> 6 == 1, service_timeout: body[9] >> 3 }
    }

    pub(super) fn emit(&self, body: &mut [u8; BODY]) {
        self.ids.emit(body);
        body[8] = u8::from(self.of_reply) << 6;
        body[9] = (self.service_timeout & 31) << 3;
    }
}
