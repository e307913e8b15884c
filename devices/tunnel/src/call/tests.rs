//! Two machines on a network that the test rules.

use std::sync::Mutex;

use device_model::direct::Piece;
use device_model::time::Instant;

use super::*;
use crate::channel::Region;
use crate::outer::{Done, HEAD, Slot};

/// What a host has made.
#[derive(Default)]
struct Made {
    opened: u32,
    alive: u32,
    /// Number of each queue pair that was connected, and of its peer.
    connected: Vec<(u32, u32)>,
}

/// A device whose queue pairs have numbers from `first` on.
struct FakeHost {
    first: u32,
    made: Arc<Mutex<Made>>,
}

struct Half {
    qpn: u32,
    made: Arc<Mutex<Made>>,
}

impl Drop for Half {
    fn drop(&mut self) {
        self.made.lock().unwrap().alive -= 1;
    }
}

impl Host for FakeHost {
    type Half = Half;
    type Outer = Half;

    fn open(&mut self) -> io::Result<(Half, Terms)> {
        let mut made = self.made.lock().unwrap();
        let qpn = self.first + made.opened;
        made.opened += 1;
        made.alive += 1;
        let regions = vec![(Region { gpa: 0, len: 4096 }, 1)];
        let terms = Terms { gid: [1; 16], qpn, psn: 0, mtu: 3, reads: 1, regions, addresses: None };
        Ok((Half { qpn, made: Arc::clone(&self.made) }, terms))
    }

    fn connect(&mut self, half: Half, peer: &Terms) -> io::Result<Half> {
        self.made.lock().unwrap().connected.push((half.qpn, peer.qpn));
        Ok(half)
    }
}

impl Outer for Half {
    fn room(&self) -> usize {
        0
    }

    fn send(&mut self, _: Slot, _: &[u8; HEAD], _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn received(&self, _: Slot, _: usize, _: &mut [u8]) -> Option<[u8; HEAD]> {
        None
    }

    fn repost(&mut self, _: Slot) -> io::Result<()> {
        Ok(())
    }

    fn fetch(&mut self, _: &[Piece]) -> io::Result<()> {
        Ok(())
    }

    fn poll(&mut self) -> Option<Done> {
        None
    }

    fn arm(&mut self) {}

    fn pause(&mut self) -> bool {
        false
    }
}

struct Machine {
    calls: Calls<FakeHost>,
    made: Arc<Mutex<Made>>,
    channels: Vec<Box<dyn Channel>>,
}

fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

impl Machine {
    fn new(number: u8, secret: &[u8]) -> Self {
        let made = Arc::new(Mutex::new(Made::default()));
        let host = FakeHost { first: u32::from(number) * 100, made: Arc::clone(&made) };
        let mut next = [number; 16];
        let nonce = move || {
            next[0] += 1;
            Ok(next)
        };
        let key = Key::new(secret).unwrap();
        let options = Options { mac: mac(number), addresses: None, key, nonce: Box::new(nonce) };
        Self { calls: Calls::new(host, options), made, channels: Vec::new() }
    }

    fn sent(&mut self, now: Instant) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.calls.transmit(now)).collect()
    }

    fn take_channels(&mut self) {
        while let Some((_, channel)) = self.calls.poll() {
            // The device gives the one before up when it gets another one.
            self.channels = vec![channel];
        }
    }

    fn is_connected(&self) -> bool {
        self.channels.len() == 1
    }
}

struct Network {
    machines: [Machine; 2],
    now: Instant,
    heard: Vec<(usize, Vec<u8>)>,
}

impl Network {
    fn new() -> Self {
        Self::with([b"the secret of both of them"; 2])
    }

    fn with(secrets: [&[u8]; 2]) -> Self {
        let machines = [Machine::new(1, secrets[0]), Machine::new(2, secrets[1])];
        Self { machines, now: Instant::from_nanos(1), heard: vec![] }
    }

    /// Lets time pass. Frames for which `lose` is true are lost; it gets their number.
    fn run(&mut self, span: Duration, lose: impl Fn(usize) -> bool) {
        let end = self.now + span;
        loop {
            let mut frames = Vec::new();
            for n in 0..2 {
                let sent = self.machines[n].sent(self.now);
                frames.extend(sent.into_iter().map(|frame| (1 - n, frame)));
            }
            for (to, frame) in &frames {
                if !lose(self.heard.len()) {
                    self.machines[*to].calls.receive(self.now, frame);
                }
                self.heard.push((*to, frame.clone()));
            }
            self.machines.iter_mut().for_each(Machine::take_channels);
            if frames.is_empty() {
                let next = self.machines.iter().filter_map(|machine| machine.calls.next_deadline()).min();
                match next.filter(|next| *next <= end) {
                    Some(next) => self.now = self.now.max(next),
                    None => break,
                }
            }
        }
        self.now = end;
    }

    /// Whether both have one queue pair each, connected to the other's.
    fn is_connected(&self) -> bool {
        let last =
            self.machines.each_ref().map(|machine| machine.made.lock().unwrap().connected.last().copied());
        let alive = self.machines.iter().all(|machine| machine.made.lock().unwrap().alive == 1);
        let matching = matches!(last, [Some((a, b)), Some((c, d))] if (a, b) == (d, c));
        self.machines.iter().all(Machine::is_connected) && alive && matching
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn machines_come_by_one_channel_whoever_calls() {
    for wants in [&[0][..], &[1], &[0, 1], &[1, 0]] {
        let mut network = Network::new();
        for n in wants {
            network.machines[*n].calls.want(mac(2 - *n as u8));
        }
        network.run(SECOND, |_| false);
        assert!(network.is_connected(), "{wants:?}");
        assert_eq!(network.machines.iter().filter_map(|it| it.calls.next_deadline()).min(), None);
    }
}

#[test]
fn any_frame_may_be_lost() {
    for lost in 0..64_u32 {
        let mut network = Network::new();
        network.machines[0].calls.want(mac(2));
        network.machines[1].calls.want(mac(1));
        network.run(20 * SECOND, |n| n < 6 && lost >> n & 1 == 1);
        assert!(network.is_connected(), "{lost:#b}");
    }
}

#[test]
fn channel_that_dies_is_made_again_and_replaces_what_is_left_of_it() {
    let mut network = Network::new();
    for n in [0, 1] {
        network.machines[n].calls.want(mac(2 - n as u8));
    }
    network.run(SECOND, |_| false);
    for n in [0, 1, 0] {
        // The other side has not noticed.
        network.machines[n].channels.clear();
        network.run(10 * SECOND, |_| false);
        assert!(network.is_connected());
    }
}

#[test]
fn machine_that_was_started_anew_gets_a_channel_in_place_of_the_old_one() {
    let mut network = Network::new();
    network.machines[0].calls.want(mac(2));
    network.run(SECOND, |_| false);
    let moved = Machine::new(2, b"the secret of both of them");
    moved.made.lock().unwrap().opened = 50;
    network.machines[1] = moved;
    network.machines[1].calls.want(mac(1));
    network.run(SECOND, |_| false);
    assert!(network.is_connected());
}

#[test]
fn frames_that_are_said_again_make_no_channel_and_leave_nothing() {
    let mut network = Network::new();
    network.machines[0].calls.want(mac(2));
    network.run(SECOND, |_| false);
    let heard = network.heard.clone();
    let before = network.machines.each_ref().map(|machine| machine.made.lock().unwrap().connected.len());
    for (to, frame) in heard {
        network.machines[to].calls.receive(network.now, &frame);
    }
    network.run(10 * SECOND, |_| false);
    let after = network.machines.each_ref().map(|machine| machine.made.lock().unwrap().connected.len());
    assert_eq!(before, after);
    assert!(network.is_connected());
}

#[test]
fn machine_with_another_key_gets_nothing() {
    let mut network = Network::with([b"the secret of one of them", b"the secret of the other one"]);
    network.machines[0].calls.want(mac(2));
    network.machines[1].calls.want(mac(1));
    network.run(10 * SECOND, |_| false);
    for machine in &network.machines {
        assert_eq!(machine.made.lock().unwrap().opened, 0);
    }
}

#[test]
fn flood_of_frames_is_looked_at_in_part() {
    let mut network = Network::new();
    let machine = &mut network.machines[0];
    for n in 0..10_000_u32 {
        let mut caller = [0; 16];
        caller[..4].copy_from_slice(&n.to_le_bytes());
        let key = Key::new(b"the secret of both of them").unwrap();
        let frame = Message::Call { caller }.encode(mac(1), mac(2), &key);
        machine.calls.receive(network.now, &frame);
    }
    let made = machine.made.lock().unwrap();
    assert!(made.opened <= LOOKS && made.alive == 1, "{}", made.opened);
}

#[test]
fn own_and_group_addresses_are_not_called() {
    let mut machine = Machine::new(1, b"the secret of both of them");
    machine.calls.want(mac(1));
    machine.calls.want(MacAddr::BROADCAST);
    assert_eq!(machine.calls.next_deadline(), None);
}
