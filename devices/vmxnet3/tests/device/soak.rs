//! A driver that keeps to the rules, under random traffic: data is exact and none of its assertions trips.

use proptest::prelude::*;
use vmxnet3::spec::Features;
use vmxnet3::spec::desc::OFFLOAD_TSO;

use crate::driver::{Driver, Offload, Options};
use crate::frames::{TCP_HEADERS, inbound, outbound, payload, tagged, tcp_partial};
use crate::machine::Machine;

#[derive(Clone, Debug)]
enum Step {
    Send { queue: usize, len: usize, pieces: usize },
    SendSegmented { queue: usize, len: usize, mss: u16 },
    ProcessTx,
    CompleteTx { queue: usize },
    Receive { len: usize, tag: Option<u16> },
    PollRx { queue: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let queue = 0usize..2;
    prop_oneof![
        (queue.clone(), 14usize..9014, 0usize..8).prop_map(|(queue, len, pieces)| Step::Send {
            queue,
            len,
            pieces
        }),
        (queue.clone(), 0usize..60_000, 100u16..8960).prop_map(|(queue, len, mss)| Step::SendSegmented {
            queue,
            len,
            mss
        }),
        Just(Step::ProcessTx),
        queue.clone().prop_map(|queue| Step::CompleteTx { queue }),
        (14usize..9014, proptest::option::of(0u16..3))
            .prop_map(|(len, tag)| Step::Receive { len, tag: tag.map(|_| 0) }),
        queue.prop_map(|queue| Step::PollRx { queue }),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    (prop_oneof![Just(60u32), Just(1500), Just(3050), Just(3051), Just(9000)], any::<bool>(), any::<bool>())
        .prop_map(|(mtu, checksum, vlan)| {
            let mut features = Features::empty();
            features.set(Features::RX_CHECKSUM, checksum);
            features.set(Features::RX_VLAN, vlan);
            Options { queues: 2, tx_ring: 32, rx_ring: 32, body_ring: 32, mtu, features }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn data_is_exact(options in options(), steps in proptest::collection::vec(step(), 1..300)) {
        let machine = Machine::new();
        let mut driver = Driver::open(&machine, options);
        let mut in_flight: [Vec<Vec<u8>>; 2] = Default::default();
        let mut accepted: [usize; 2] = [0; 2];
        let mut arriving = Vec::new();
        for step in steps {
            match step {
                Step::Send { queue, len, pieces } if in_flight[queue].is_empty() && driver.can_send(queue, pieces) => {
                    driver.send(queue, &outbound(len), pieces, Offload::default());
                    in_flight[queue].push(outbound(len));
                    accepted[queue] += 1;
                }
                Step::SendSegmented { queue, len, mss }
                    if in_flight[queue].is_empty() && driver.can_send(queue, 8) =>
                {
                    let header_len = TCP_HEADERS as u16;
                    let offload = Offload { mode: OFFLOAD_TSO, header_len, mss_or_offset: mss, tag: None };
                    let data = payload(len);
                    driver.send(queue, &tcp_partial(&data), 8, offload);
                    in_flight[queue].push(data);
                    accepted[queue] += 1;
                }
                Step::ProcessTx => {
                    machine.run_tx();
                    let mut sent = machine.link.take().into_iter();
                    for frame in in_flight.iter_mut().flat_map(|frames| frames.drain(..)) {
                        check_sent(&mut sent, &frame)?;
                    }
                    prop_assert_eq!(sent.next(), None);
                }
                Step::CompleteTx { queue } => {
                    let done = driver.complete_tx(queue);
                    prop_assert!(done <= accepted[queue]);
                    accepted[queue] -= done;
                }
                Step::Receive { len, tag } => {
                    let len = len.min(options.mtu as usize + 14);
                    let frame = inbound(len);
                    let wire = tag.map_or(frame.clone(), |tag| tagged(&frame, tag));
                    let dropped = machine.nic.stats().rx[0].out_of_buffers;
                    machine.receive(&wire);
                    if machine.nic.stats().rx[0].out_of_buffers == dropped {
                        let strip = options.features.contains(Features::RX_VLAN);
                        arriving.push(if strip { (frame, tag) } else { (wire, None) });
                    }
                }
                Step::PollRx { queue } => {
                    let received = driver.poll_rx(queue);
                    // Frames that are not IP all take the first queue.
                    let expected: Vec<_> = if queue == 0 { std::mem::take(&mut arriving) } else { Vec::new() };
                    let received: Vec<_> = received.into_iter().map(|packet| (packet.bytes, packet.tag)).collect();
                    prop_assert_eq!(received, expected);
                }
                Step::Send { .. } | Step::SendSegmented { .. } => {}
            }
        }
        prop_assert_eq!(machine.nic.stats().tx.iter().map(|tx| tx.errors + tx.discarded).sum::<u64>(), 0);
    }
}

/// Takes from `sent` what `expected` became: itself, or segments whose payloads add up to it.
fn check_sent(sent: &mut impl Iterator<Item = Vec<u8>>, expected: &[u8]) -> Result<(), TestCaseError> {
    let first = sent.next();
    if first.as_deref() == Some(expected) {
        return Ok(());
    }
    let mut data: Vec<u8> = Vec::new();
    let mut segment = first;
    loop {
        let Some(frame) = segment else { return Err(TestCaseError::fail("segments are missing")) };
        data.extend(&frame[TCP_HEADERS..]);
        if data.len() >= expected.len() {
            prop_assert_eq!(data, expected);
            return Ok(());
        }
        segment = sent.next();
    }
}
