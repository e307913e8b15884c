//! A machine of the same host that puts anything into its channel: records in shared memory that name its own memory.

#![no_main]

#[path = "../../devices/roce/tests/common/mod.rs"]
mod common;
mod peer;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use arbitrary::Arbitrary;
use device_model::direct::{Channel, MAX_RECORD};
use device_model::ram::{RamError, RamSlice};
use libfuzzer_sys::fuzz_target;
use verbs::{Provider, QpId};

use common::World;

/// Bytes of memory that the neighbour has.
const MEMORY: u64 = 1 << 20;

/// A record.
#[derive(Arbitrary, Debug)]
enum Record {
    /// A message to the victim's connection: opcode, flags, PSN relative to the one that is due, extension headers, how long
    /// it says it is, and either where its payload lies or its payload.
    Message {
        opcode: u8,
        flags: u8,
        psn: i8,
        ack: bool,
        ext: Vec<u8>,
        len: u32,
        runs: Vec<(u32, u32)>,
        value: Vec<u8>,
    },
    /// Bytes as they are.
    Raw(Vec<u8>),
}

impl Record {
    fn bytes(&self, world: &World) -> Vec<u8> {
        let Self::Message { opcode, flags, psn, ack, ext, len, runs, value } = self else {
            let Self::Raw(bytes) = self else { return vec![] };
            return bytes.clone();
        };
        let own = world.nodes[1].provider.query_qp(QpId(1)).expect("the victim has its connection");
        let qpn = world.nodes[0].provider.query_qp(QpId(1)).expect("its peer has, too").dest_qpn.0;
        let psn = own.rq_psn.wrapping_add_signed(i32::from(*psn)) & 0xff_ffff;
        let [src, dst] = [0, 1].map(|n: usize| world.nodes[n].gids()[0].0);
        let mut bytes = vec![2, runs.len() as u8, 0, 0];
        bytes.extend(len.to_le_bytes());
        bytes.extend([src, dst].concat());
        bytes.extend([*opcode, *flags & !0x30, 0xff, 0xff]);
        bytes.extend(qpn.to_be_bytes());
        bytes.extend((psn | u32::from(*ack) << 31).to_be_bytes());
        bytes.extend(ext);
        for (gpa, len) in runs {
            bytes.extend(u64::from(*gpa).to_le_bytes());
            bytes.extend(len.to_le_bytes());
        }
        bytes.extend(value);
        bytes
    }
}

/// The victim's end of the channel.
struct Feeder(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Channel for Feeder {
    fn send(&mut self, record: &[u8]) -> bool {
        assert!(record.len() <= MAX_RECORD);
        true
    }

    fn flush(&mut self) {}

    fn recv(&mut self, buf: &mut [u8]) -> Option<usize> {
        let record = self.0.lock().expect("no thread panicked").pop_front()?;
        let len = record.len().min(MAX_RECORD);
        buf[..len].copy_from_slice(&record[..len]);
        Some(len)
    }

    fn may_use(&self, source: IpAddr) -> bool {
        !source.is_multicast()
    }

    fn reaches(&self, gpa: u64, len: u32) -> bool {
        gpa.checked_add(u64::from(len)).is_some_and(|end| end <= MEMORY)
    }

    fn pull(&self, gpa: u64, to: &RamSlice<'_>) -> Result<(), RamError> {
        assert!(self.reaches(gpa, to.len() as u32), "memory is read that was not asked about");
        to.copy_from(&vec![0xee; to.len()]);
        Ok(())
    }

    fn is_settled(&mut self) -> bool {
        true
    }

    fn wait(&mut self) -> bool {
        false
    }

    fn rest(&mut self) -> bool {
        self.0.lock().expect("no thread panicked").is_empty()
    }

    fn is_up(&self) -> bool {
        true
    }
}

fuzz_target!(|records: Vec<Record>| {
    let mut world = peer::victim();
    let waiting = Arc::new(Mutex::new(VecDeque::new()));
    let mac = world.nodes[0].mac;
    world.nodes[1].provider.attach(mac, Box::new(Feeder(waiting.clone())));
    for record in records.iter().take(64) {
        let bytes = record.bytes(&world);
        waiting.lock().expect("no thread panicked").push_back(bytes);
        world.run_for(std::time::Duration::from_micros(10));
    }
    peer::check(&mut world);
});
