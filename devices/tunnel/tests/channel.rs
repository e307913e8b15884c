//! Channels over queue pairs without a device.

use std::sync::Arc;

use device_model::direct::{Channel, MAX_RECORD, Piece};
use device_model::ram::{GuestRam, Ram};
use device_model::time::Instant;
use tunnel::fake::{Fabric, FakeOuter, pair};
use tunnel::outer::{CREDITS, HEAD};
use tunnel::{Outer, Peer, Region, Tunnel};
use vm_memory::GuestAddress;

const SIZE: u64 = 1 << 20;

struct Ends {
    fabric: Fabric,
    a: Tunnel<FakeOuter>,
    b: Tunnel<FakeOuter>,
    ram: [Arc<dyn GuestRam>; 2],
}

fn peer() -> Peer {
    Peer { regions: vec![Region { gpa: 0, len: SIZE }], addresses: Some(vec![[10, 0, 0, 1].into()]) }
}

fn memory() -> [Arc<dyn GuestRam>; 2] {
    [0, 1].map(|_| {
        Arc::new(Ram::from_ranges(&[(GuestAddress(0), SIZE as usize)]).unwrap()) as Arc<dyn GuestRam>
    })
}

fn ends() -> Ends {
    let ram = memory();
    let (fabric, [a, b]) = pair(ram.clone());
    Ends { fabric, a: Tunnel::new(a, peer()), b: Tunnel::new(b, peer()), ram }
}

/// Lets all that was posted end.
fn pass(fabric: &Fabric) {
    fabric.depart(Instant::from_nanos(1));
    fabric.arrive(Instant::from_nanos(1));
}

fn recv(channel: &mut Tunnel<FakeOuter>) -> Option<Vec<u8>> {
    let mut buf = [0; MAX_RECORD];
    channel.recv(&mut buf).map(|len| buf[..len].to_vec())
}

fn finish(channel: &mut Tunnel<FakeOuter>, count: usize) {
    (0..count).for_each(|_| channel.fetcher().unwrap().finish());
}

#[test]
fn records_come_whole_and_in_order_and_credits_come_back() {
    let Ends { fabric, mut a, mut b, .. } = ends();
    let record = |n: usize| vec![n as u8; n * 61 % MAX_RECORD];
    let (mut sent, mut got) = (0, 0);
    while got < 1000 {
        while a.send(&record(sent)) {
            sent += 1;
            assert!(sent - got <= CREDITS);
        }
        pass(&fabric);
        while let Some(received) = recv(&mut b) {
            assert_eq!(received, record(got));
            got += 1;
            finish(&mut b, 1);
        }
        b.flush();
        pass(&fabric);
    }
    assert!(a.is_up() && b.is_up());
}

#[test]
fn sender_rests_only_while_there_is_no_room() {
    let Ends { fabric, mut a, mut b, .. } = ends();
    while a.send(b"record") {}
    pass(&fabric);
    assert!(a.rest());
    while recv(&mut b).is_some() {}
    finish(&mut b, CREDITS);
    b.flush();
    pass(&fabric);
    assert!(!a.rest());
    assert!(a.send(b"record"));
}

#[test]
fn channel_is_settled_when_the_peer_is_done_with_all_and_is_asked_for_that() {
    let Ends { fabric, mut a, mut b, .. } = ends();
    assert!(a.is_settled());
    assert!(a.send(b"one") && a.send(b"two"));
    pass(&fabric);
    while recv(&mut b).is_some() {}
    finish(&mut b, 2);
    b.flush();
    pass(&fabric);
    // So few are not told unasked.
    fabric.be_patient();
    assert!(!a.is_settled());
    a.wait();
    pass(&fabric);
    assert!(b.rest());
    pass(&fabric);
    assert!(a.is_settled());
}

#[test]
fn answer_to_a_question_waits_until_all_is_done_with() {
    let Ends { fabric, mut a, mut b, ram } = ends();
    ram[0].write(0x100, &[7; 300]).unwrap();
    assert!(a.send(b"look there"));
    pass(&fabric);
    assert!(recv(&mut b).is_some());
    assert!(b.fetcher().unwrap().fetch(&[Piece { from: 0x100, to: 0x4000, len: 300 }]));
    let told = |a: &mut Tunnel<FakeOuter>, b: &mut Tunnel<FakeOuter>| {
        b.flush();
        pass(&fabric);
        a.is_settled()
    };
    fabric.be_patient();
    a.wait();
    pass(&fabric);
    assert!(!b.rest());
    assert!(!told(&mut a, &mut b));
    assert!(b.fetcher().unwrap().fetched() && !b.fetcher().unwrap().fetched());
    let mut got = [0; 300];
    ram[1].read(0x4000, &mut got).unwrap();
    assert_eq!(got, [7; 300]);
    finish(&mut b, 1);
    assert!(told(&mut a, &mut b));
}

#[test]
fn fetches_are_bounded() {
    let Ends { fabric, a: _a, mut b, .. } = ends();
    let pieces = vec![Piece { from: 0, to: 0, len: 8 }; 200];
    let fetcher = b.fetcher().unwrap();
    let started = (0..10).take_while(|_| fetcher.fetch(&pieces)).count();
    assert_eq!(started, 3);
    pass(&fabric);
    let fetcher = b.fetcher().unwrap();
    assert!(fetcher.fetched() && fetcher.fetch(&pieces));
}

#[test]
fn channel_ends_with_its_queue_pair_at_both_ends() {
    let Ends { fabric, mut a, mut b, .. } = ends();
    let alive = a.alive();
    fabric.cut();
    assert_eq!(recv(&mut a), None);
    assert!(!a.is_up() && !a.wait());
    drop(a);
    assert!(!alive.load(std::sync::atomic::Ordering::Relaxed));
    assert!(!b.rest());
    assert!(!b.is_up());
}

#[test]
fn only_what_the_peer_named_is_reached_and_used() {
    let Ends { a, .. } = ends();
    assert!(a.reaches(0, SIZE as u32) && a.reaches(SIZE - 1, 1));
    assert!(!a.reaches(SIZE - 1, 2) && !a.reaches(SIZE, 1) && !a.reaches(u64::MAX, 2));
    assert!(a.may_use([10, 0, 0, 1].into()) && !a.may_use([10, 0, 0, 2].into()));
}

/// A peer whose messages are whatever it likes.
fn hostile(messages: impl IntoIterator<Item = (u8, u32)>) -> Tunnel<FakeOuter> {
    let (fabric, [mut bad, good]) = pair(memory());
    let mut victim = Tunnel::new(good, peer());
    for (slot, (kind, finished)) in messages.into_iter().enumerate() {
        let mut head = [0; HEAD];
        head[0] = kind;
        head[4..].copy_from_slice(&finished.to_le_bytes());
        bad.send(slot as u16, &head, b"record").unwrap();
        pass(&fabric);
        recv(&mut victim);
    }
    victim
}

#[test]
fn peer_that_breaks_the_rules_loses_the_channel_and_nothing_else() {
    assert!(hostile([(1, 0), (2, 0), (3, 0)]).is_up());
    for bad in [(0, 0), (4, 0), (1, 1), (2, u32::MAX)] {
        assert!(!hostile([bad]).is_up(), "{bad:?}");
    }
    let records = |count| (0..count).map(|_| (1, 0));
    assert!(hostile(records(CREDITS)).is_up());
    assert!(!hostile(records(CREDITS + 1)).is_up());
}
