//! A running switch and its links, over real sockets.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use device_model::net::{Link, MacAddr};
use rustix::net::SocketAddrUnix;

use super::protocol::{Answer, FRAME, HELLO, Header, Introduction, ProtocolError};
use super::socket::{self, Received, dial};
use super::*;
use crate::socket_file::Listener;
use crate::testing::{frame, is_silent, mac, readable_for, recv, send, wait_readable, wait_until};
use zerocopy::IntoBytes;

struct Lab {
    _dir: tempfile::TempDir,
    path: PathBuf,
    switch: Option<SwitchThread>,
}

impl Lab {
    fn new(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("switch.sock");
        let switch = Some(SwitchThread::spawn(&path, options).unwrap());
        Self { _dir: dir, path, switch }
    }

    fn port(&self, name: &str) -> SwitchLink {
        port(&self.path, name, None)
    }

    fn snapshot(&self) -> Snapshot {
        self.switch.as_ref().unwrap().snapshot()
    }

    fn counters(&self, name: &str) -> PortSnapshot {
        self.snapshot().ports.into_iter().find(|p| p.name == name).unwrap()
    }
}

fn port(path: &Path, name: &str, mtu: Option<u16>) -> SwitchLink {
    SwitchLink::connect(path, &SwitchLinkOptions { name: name.into(), mtu }).unwrap()
}

/// A connection that speaks for itself, byte by byte.
fn raw(path: &Path) -> OwnedFd {
    dial(&SocketAddrUnix::new(path).unwrap()).unwrap()
}

fn raw_send(socket: &OwnedFd, message: &[u8]) {
    socket::send(socket, &[IoSlice::new(message)]).unwrap();
}

/// The next message to a raw connection; empty once the switch has hung up.
fn raw_recv(socket: &OwnedFd) -> Vec<u8> {
    let mut buf = vec![0; 70_000];
    wait_readable(socket);
    match socket::recv(socket, &mut [io::IoSliceMut::new(&mut buf)]) {
        Ok(Received::Message(len)) => buf.truncate(len),
        Ok(Received::Closed) | Err(rustix::io::Errno::CONNRESET) => buf.clear(),
        other => panic!("unexpected {other:?}"),
    }
    buf
}

fn hello(name: &str) -> Vec<u8> {
    Introduction { max_frame: 9018, features: 0, name: name.into() }.encode()
}

#[test]
fn frames_flood_until_learned_and_then_reach_only_their_port() {
    let lab = Lab::new(Options::default());
    let (a, b, c) = (lab.port("a"), lab.port("b"), lab.port("c"));
    let question = frame(MacAddr::BROADCAST, mac(1), 60, 1);
    send(&a, &question);
    assert_eq!((recv(&b), recv(&c)), (question.clone(), question));
    let answer = frame(mac(1), mac(2), 60, 2);
    send(&b, &answer);
    assert_eq!(recv(&a), answer);
    let data = frame(mac(2), mac(1), 60, 3);
    send(&a, &data);
    assert_eq!(recv(&b), data);
    assert!(is_silent(&c) && is_silent(&a));
    assert_eq!(lab.snapshot().flooded, 1);
}

#[test]
fn jumbo_frame_gathered_from_parts_arrives_whole_and_in_order() {
    let lab = Lab::new(Options::default());
    let (a, b) = (lab.port("a"), lab.port("b"));
    assert_eq!(a.mtu(), DEFAULT_MTU);
    for n in 0..200 {
        let jumbo = frame(MacAddr::BROADCAST, mac(1), 9018, n);
        a.send(&[IoSlice::new(&jumbo[..14]), IoSlice::new(&jumbo[14..1000]), IoSlice::new(&jumbo[1000..])])
            .unwrap();
        if n % 50 == 49 {
            (n - 49..=n).for_each(|n| assert_eq!(recv(&b), frame(MacAddr::BROADCAST, mac(1), 9018, n)));
        }
    }
}

#[test]
fn frame_longer_than_the_receiver_takes_is_dropped_for_it_alone() {
    let lab = Lab::new(Options::default());
    let (a, b) = (lab.port("a"), lab.port("b"));
    let small = port(&lab.path, "small", Some(1500));
    let jumbo = frame(MacAddr::BROADCAST, mac(1), 9014, 1);
    send(&a, &jumbo);
    assert_eq!(recv(&b), jumbo);
    let short = frame(MacAddr::BROADCAST, mac(1), 1514, 2);
    send(&a, &short);
    assert_eq!(recv(&small), short);
    assert_eq!(lab.counters("small").dropped_too_long, 1);
    let refused = small.send(&[IoSlice::new(&jumbo)]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn slow_receiver_loses_its_own_frames_and_delays_nobody() {
    let lab = Lab::new(Options { queue_bytes: 100_000, ..Options::default() });
    let (a, b, slow) = (lab.port("a"), lab.port("b"), lab.port("slow"));
    // Several times what the kernel and the queue hold for the port that does not read.
    let sent: u64 = 4000;
    for n in 0..sent {
        send(&a, &frame(MacAddr::BROADCAST, mac(1), 9014, n as u8));
        assert_eq!(recv(&b)[14], n as u8);
    }
    // The switch is one thread: with this answer it is done with all of the flood.
    send(&b, &frame(mac(1), mac(2), 60, 0));
    recv(&a);
    let counters = lab.counters("slow");
    assert!(counters.dropped_full > 0 && counters.queued_frames > 0, "{counters:?}");
    assert_eq!(lab.counters("b").dropped_full, 0);
    // What was kept arrives in order once the port reads, and the port works again.
    let kept = sent - counters.dropped_full;
    for n in 0..kept {
        assert_eq!(recv(&slow)[14], n as u8);
    }
    send(&b, &frame(MacAddr::BROADCAST, mac(2), 60, 77));
    assert_eq!(recv(&slow), frame(MacAddr::BROADCAST, mac(2), 60, 77));
}

#[test]
fn burst_beyond_the_socket_buffer_waits_in_the_link_and_arrives_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sock");
    // A switch that answers and then does not read.
    let listener = Listener::bind(&path, socket::KIND).unwrap();
    let connecting = std::thread::spawn(move || port(&path, "a", None));
    wait_readable(&listener);
    let stalled = listener.accept().unwrap();
    Introduction::parse(&raw_recv(&stalled)).unwrap();
    raw_send(&stalled, &Answer::Welcome { mtu: DEFAULT_MTU, port: 0 }.encode());
    let link = connecting.join().unwrap();

    let mut sent = 0_u32;
    let full = loop {
        let mut jumbo = frame(MacAddr::BROADCAST, mac(1), 9014, 0);
        jumbo[14..18].copy_from_slice(&sent.to_le_bytes());
        match link.send(&[IoSlice::new(&jumbo)]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    for n in 0..sent {
        if !readable_for(&stalled, Duration::ZERO) {
            // The kernel has room again, which wakes the link's owner, who drains the queue by asking for frames.
            wait_readable(link.readable_fd().unwrap());
            assert_eq!(link.recv(&mut []).unwrap(), None);
        }
        assert_eq!(raw_recv(&stalled)[18..22], n.to_le_bytes());
    }
    assert!(!readable_for(link.readable_fd().unwrap(), Duration::ZERO));
}

#[test]
fn malformed_hello_is_refused_with_a_reason_and_harms_nobody() {
    let lab = Lab::new(Options::default());
    let (a, b) = (lab.port("a"), lab.port("b"));
    let foreign = ProtocolError::Foreign.to_string();
    let mut wrong_version = hello("x");
    wrong_version[12..16].copy_from_slice(&[2, 0, 3, 0]);
    let version = ProtocolError::Version(2, 3).to_string();
    let frame_first = [Header::new(FRAME).as_bytes(), &[0; 60]].concat();
    let cases: [(&[u8], &str); 4] = [
        (b"GET / HTTP/1.1\r\n\r\n", &foreign),
        (&[HELLO], &foreign),
        (&frame_first, &foreign),
        (&wrong_version, &version),
    ];
    for (message, reason) in cases {
        let socket = raw(&lab.path);
        raw_send(&socket, message);
        assert_eq!(Answer::parse(&raw_recv(&socket)), Ok(Answer::Refused(reason.into())));
        assert!(raw_recv(&socket).is_empty());
    }
    assert_eq!((lab.snapshot().refused, lab.snapshot().ports.len()), (4, 2));
    send(&a, &frame(MacAddr::BROADCAST, mac(1), 60, 1));
    recv(&b);
}

#[test]
fn silent_connection_is_hung_up_on_and_a_port_is_not() {
    let lab = Lab::new(Options { greeting_time: Duration::from_millis(300), ..Options::default() });
    let a = lab.port("a");
    let silent = raw(&lab.path);
    assert_eq!(Answer::parse(&raw_recv(&silent)), Ok(Answer::Refused("No hello received".into())));
    assert!(raw_recv(&silent).is_empty());
    assert_eq!(a.recv(&mut [0; 64]).unwrap(), None);
    assert!(a.is_up());
}

#[test]
fn messages_a_port_should_not_send_are_counted_and_ignored() {
    let lab = Lab::new(Options::default());
    let a = lab.port("a");
    let odd = raw(&lab.path);
    raw_send(&odd, &hello("odd"));
    assert_eq!(Answer::parse(&raw_recv(&odd)), Ok(Answer::Welcome { mtu: DEFAULT_MTU, port: 1 }));
    raw_send(&odd, &[200, 0, 0, 0, 1, 2, 3]);
    raw_send(&odd, &[FRAME]);
    raw_send(&odd, &[Header::new(FRAME).as_bytes(), &[0; 13]].concat());
    raw_send(&odd, &vec![FRAME; 100_000]);
    let good = frame(MacAddr::BROADCAST, mac(9), 60, 5);
    raw_send(&odd, &[Header::new(FRAME).as_bytes(), &good].concat());
    assert_eq!(recv(&a), good);
    let counters = lab.counters("odd");
    assert_eq!(counters.unknown_messages, 2);
    assert_eq!(counters.dropped_malformed, 1);
    assert_eq!(counters.dropped_too_long, 1);
}

#[test]
fn port_that_hangs_up_is_forgotten_with_its_addresses() {
    let lab = Lab::new(Options::default());
    let (a, b, c) = (lab.port("a"), lab.port("b"), lab.port("c"));
    send(&b, &frame(MacAddr::BROADCAST, mac(2), 60, 1));
    recv(&a);
    recv(&c);
    drop(b);
    wait_until("the port's end", || lab.snapshot().ports.len() == 2);
    send(&a, &frame(mac(2), mac(1), 60, 2));
    assert_eq!(recv(&c), frame(mac(2), mac(1), 60, 2));
}

#[test]
fn one_port_too_many_is_told_so() {
    let lab = Lab::new(Options { max_ports: 1, ..Options::default() });
    let _a = lab.port("a");
    let error = SwitchLink::connect(&lab.path, &SwitchLinkOptions::default()).unwrap_err();
    assert!(
        matches!(&error, ConnectError::Refused { reason, .. } if reason == "All 1 ports are taken"),
        "{error}"
    );
}

#[test]
fn port_with_a_larger_mtu_than_the_switch_is_refused() {
    let lab = Lab::new(Options { mtu: 1500, ..Options::default() });
    let options = SwitchLinkOptions { name: "a".into(), mtu: Some(9000) };
    let error = SwitchLink::connect(&lab.path, &options).unwrap_err();
    assert!(matches!(error, ConnectError::Mtu { port: 9000, switch: 1500, .. }), "{error}");
    assert_eq!(lab.port("b").mtu(), 1500);
}

#[test]
fn link_goes_down_with_the_switch_and_comes_back_with_it() {
    let mut lab = Lab::new(Options::default());
    let (a, b) = (lab.port("a"), lab.port("b"));
    assert!(a.is_up() && b.is_up());
    lab.switch = None;
    wait_until("both links down", || {
        assert!(a.recv(&mut [0; 64]).unwrap().is_none() && b.recv(&mut [0; 64]).unwrap().is_none());
        !a.is_up() && !b.is_up()
    });
    assert!(!lab.path.exists());
    let lost = a.send(&[IoSlice::new(&[0; 60])]).unwrap_err();
    assert_eq!(lost.kind(), io::ErrorKind::NotConnected);

    lab.switch = Some(SwitchThread::spawn(&lab.path, Options::default()).unwrap());
    // Driven by nothing but the descriptor's readiness, as an I/O thread does it.
    for link in [&a, &b] {
        while !link.is_up() {
            wait_readable(link.readable_fd().unwrap());
            assert_eq!(link.recv(&mut [0; 64]).unwrap(), None);
        }
    }
    send(&a, &frame(MacAddr::BROADCAST, mac(1), 60, 1));
    assert_eq!(recv(&b), frame(MacAddr::BROADCAST, mac(1), 60, 1));
}

#[test]
fn statistics_print_one_row_a_port() {
    let lab = Lab::new(Options::default());
    let (a, _b) = (lab.port("first"), lab.port("second"));
    send(&a, &frame(MacAddr::BROADCAST, mac(1), 60, 1));
    wait_until("delivery", || lab.counters("second").sent_bytes == 60);
    let text = lab.snapshot().to_string();
    assert!(text.starts_with("2 connections, 0 refused, 1 frames flooded\n"), "{text}");
    assert_eq!(text.lines().filter(|l| l.contains(" first ") || l.contains(" second ")).count(), 2, "{text}");
}
