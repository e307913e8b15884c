//! Bytes that move from the device to itself.

use alloc::format;
use alloc::vec::Vec;

use pvrdma_driver::{Driver, Qp, Recv, SendWork};
use pvrdma_spec::queue::{AtomicOperands, RdmaOperands, WrOpcode};

use crate::node::{Node, VA};
use crate::{Machine, Outcome};

/// `IB_SEND_SIGNALED`
const SIGNALED: u32 = 2;
/// Where messages are made in the memory.
const SOURCE: u64 = 3;
/// Where they go, so that nothing is aligned and pages are crossed.
const TARGET: u64 = (512 << 10) + 5;
/// Sizes around packets and pages, at a path MTU of 1024.
const SIZES: [usize; 9] = [0, 1, 7, 1023, 1024, 1025, 4096, 65_537, 300_000];

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

fn same(what: &str, got: &[u8], wanted: &[u8]) -> Outcome {
    match got.iter().zip(wanted).position(|(got, wanted)| got != wanted) {
        None if got.len() == wanted.len() => Ok(()),
        at => Err(format!("{what} of {} bytes are wrong from {at:?}", wanted.len())),
    }
}

fn post<M: Machine>(node: &Node<'_, M>, qp: &Qp, work: &SendWork) -> Outcome {
    if node.driver.post_send(qp, work) { Ok(()) } else { Err("The send queue is full".into()) }
}

fn post_recv<M: Machine>(node: &Node<'_, M>, qp: &Qp, work: &Recv) -> Outcome {
    if node.driver.post_recv(qp, work) { Ok(()) } else { Err("The receive queue is full".into()) }
}

/// Runs `act` with a process and a pair of queue pairs.
fn with_pair<M: Machine>(driver: &Driver<M>, act: impl FnOnce(&Node<'_, M>, &[Qp; 2]) -> Outcome) -> Outcome {
    let node = Node::new(driver)?;
    let pair = node.pair()?;
    let outcome = act(&node, &pair);
    node.close(pair)?;
    outcome
}

/// SENDs of every size arrive whole, and nothing is written behind them.
pub fn sends_arrive<M: Machine>(driver: &Driver<M>) -> Outcome {
    with_pair(driver, |node, [from, to]| {
        for (seed, length) in SIZES.into_iter().enumerate() {
            let data = pattern(seed, length);
            node.write(SOURCE, &data);
            node.write(TARGET, &alloc::vec![0xee; length + 1]);
            post_recv(node, to, &Recv::new(1, &[node.sge(TARGET, length as u32)]))?;
            let elements = [node.sge(SOURCE, length as u32)];
            post(node, from, &SendWork::new(2, WrOpcode::Send, SIGNALED, &elements))?;
            node.complete(2)?;
            let wanted = [&data[..], &[0xee]].concat();
            same("The bytes of a SEND", &node.read(TARGET, length + 1), &wanted)?;
        }
        Ok(())
    })
}

/// RDMA WRITE puts bytes where it says, and RDMA READ fetches them.
pub fn writes_and_reads_move_bytes<M: Machine>(driver: &Driver<M>) -> Outcome {
    with_pair(driver, |node, [from, _]| {
        let remote = RdmaOperands { remote_addr: VA + TARGET, rkey: node.mr.rkey, reserved: 0 };
        for (seed, length) in SIZES.into_iter().enumerate() {
            let data = pattern(seed, length);
            let elements = [node.sge(SOURCE, length as u32)];
            node.write(SOURCE, &data);
            post(node, from, &SendWork::new(1, WrOpcode::RdmaWrite, SIGNALED, &elements).operands(&remote))?;
            node.complete(1)?;
            same("The bytes of a WRITE", &node.read(TARGET, length), &data)?;
            node.write(SOURCE, &alloc::vec![0xee; length]);
            post(node, from, &SendWork::new(2, WrOpcode::RdmaRead, SIGNALED, &elements).operands(&remote))?;
            node.complete(1)?;
            same("The bytes of a READ", &node.read(SOURCE, length), &data)?;
        }
        Ok(())
    })
}

/// Atomics answer with the value before and change it once.
pub fn atomics_are_exact<M: Machine>(driver: &Driver<M>) -> Outcome {
    const COUNTER: u64 = 4096;
    with_pair(driver, |node, [from, _]| {
        node.write(COUNTER, &0u64.to_le_bytes());
        let mut value = 0u64;
        let mut operands = AtomicOperands {
            remote_addr: VA + COUNTER,
            compare_add: 0,
            swap: 0,
            rkey: node.mr.rkey,
            reserved: 0,
        };
        for round in 1..=40u64 {
            let hits = round % 3 != 0;
            let opcode = if round % 2 == 0 { WrOpcode::FetchAdd } else { WrOpcode::CompareSwap };
            operands.compare_add = if round % 2 == 0 { round } else { value ^ u64::from(!hits) };
            operands.swap = round << 40;
            let work = SendWork::new(round, opcode, SIGNALED, &[node.sge(64, 8)]).operands(&operands);
            post(node, from, &work)?;
            node.complete(1)?;
            same("The answer of an atomic", &node.read(64, 8), &value.to_le_bytes())?;
            value = match round % 2 == 0 {
                true => value + round,
                false if hits => operands.swap,
                false => value,
            };
        }
        same("The counter", &node.read(COUNTER, 8), &value.to_le_bytes())
    })
}

/// A completion queue that was armed announces its next completion once.
pub fn armed_queue_notifies<M: Machine>(driver: &Driver<M>) -> Outcome {
    with_pair(driver, |node, [from, to]| {
        while driver.next_notification().is_some() {}
        driver.arm(&node.cq, false);
        post_recv(node, to, &Recv::new(1, &[node.sge(TARGET, 16)]))?;
        post(node, from, &SendWork::new(2, WrOpcode::Send, SIGNALED, &[node.sge(SOURCE, 16)]))?;
        node.complete(2)?;
        let announced: Vec<u32> = core::iter::from_fn(|| driver.next_notification()).collect();
        if announced == [node.cq.handle] {
            return Ok(());
        }
        Err(format!("Queue {} was armed once; announced were {announced:?}", node.cq.handle))
    })
}
