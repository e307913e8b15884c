//! What a hostile peer can do to node 1 of two, and what must hold afterwards.

use std::time::Duration;

use arbitrary::Arbitrary;
use device_model::ram::GuestRam;
use roce::wire::Frame;
use verbs::{Access, Mtu, Provider, QpId, SendOp};

use crate::common::node::{HEAP, HEAP_VA};
use crate::common::wr::va;
use crate::common::{Connection, World, edit};

/// What the peer may write: node 1's first megabyte of heap.
const GRANTED: u64 = 1 << 20;
/// Bytes behind it that nobody may write.
const GUARD: usize = 64 << 10;

/// Something the peer sends.
#[derive(Arbitrary, Debug)]
pub enum Sent {
    /// Transport headers and payload to the victim's connection: opcode, flags, PSN relative to the one that is due, and
    /// what follows.
    Packet { opcode: u8, flags: u8, psn: i8, ack: bool, rest: Vec<u8> },
    /// The same, at whatever queue pair.
    Transport(Vec<u8>),
    /// A frame as it is.
    Raw(Vec<u8>),
    /// Nothing, for some microseconds.
    Pause(u16),
}

impl Sent {
    /// Lets it reach the victim, and the victim act.
    pub fn deliver(&self, world: &mut World) {
        let frame = match self {
            Self::Pause(micros) => return world.run_for(Duration::from_micros(u64::from(*micros))),
            Self::Raw(bytes) => bytes.clone(),
            Self::Transport(bytes) => framed(bytes),
            Self::Packet { opcode, flags, psn, ack, rest } => {
                let own = world.nodes[1].provider.query_qp(QpId(1));
                let peer = world.nodes[0].provider.query_qp(QpId(1));
                let (Ok(own), Ok(peer)) = (own, peer) else { return };
                let psn = own.rq_psn.wrapping_add_signed(i32::from(*psn)) & 0xff_ffff;
                let mut bytes = vec![*opcode, *flags, 0xff, 0xff];
                bytes.extend(peer.dest_qpn.0.to_be_bytes());
                bytes.extend((psn | u32::from(*ack) << 31).to_be_bytes());
                bytes.extend(rest);
                framed(&bytes)
            }
        };
        let now = world.now;
        let victim = &mut world.nodes[1];
        if victim.provider.claims(&frame) {
            victim.provider.receive(now, &frame);
        }
        world.run_for(Duration::from_micros(2));
    }
}

/// Transport bytes as a frame from node 0 to node 1, with the CRC it should have.
fn framed(transport: &[u8]) -> Vec<u8> {
    let payload = &transport[..transport.len().min(4200)];
    let (udp, ip) = (8 + payload.len() + 4, 28 + payload.len() + 4);
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend((ip as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0xc0, 1, 0x12, 0xb7]);
    frame.extend((udp as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame.extend([0; 4]);
    let sum: u32 =
        frame[14..34].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes());
    edit::seal(&mut frame);
    frame
}

/// Two nodes; node 1 is in the middle of work on a connection to node 0.
pub fn victim() -> World {
    let mut world = World::connected(Connection { mtu: Mtu::B256, ..Connection::default() });
    let victim = &mut world.nodes[1];
    victim.provider.deregister_mr(verbs::MrId(1)).expect("the region goes");
    victim.keys = victim.register(2, HEAP_VA, HEAP, GRANTED, Access::all());
    let (addr, rkey) = (va(HEAP), world.nodes[0].keys.rkey);
    for id in 0..4 {
        let victim = &mut world.nodes[1];
        victim.recv(1, id, HEAP + id * 0x1000, 0x1000);
        victim.send(1, id, SendOp::Read { addr, rkey }, HEAP + 0x8000, 2000);
        victim.send(1, id, SendOp::Write { addr, rkey, imm: None }, HEAP, 700);
        victim.send(1, id, SendOp::FetchAdd { addr, rkey, add: 1 }, HEAP + 0x4000, 8);
    }
    world
}

/// The victim comes to rest, and nothing was written outside what was granted.
pub fn check(world: &mut World) {
    world.run_for(Duration::from_secs(20));
    let ram: &dyn GuestRam = &*world.nodes[1].ram;
    for at in [0, HEAP + GRANTED] {
        let mut guard = vec![0; GUARD];
        ram.read(at, &mut guard).expect("the guard is RAM");
        assert!(guard.iter().all(|byte| *byte == 0), "memory outside of what was granted was written");
    }
    assert!(Frame::parse(&framed(&[])).is_err(), "a frame without transport headers is no frame");
}
