//! What carries packets between two nodes: the wire, channels, or now this and now that.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use device_model::direct::{Channel, MAX_RECORD};
use device_model::ram::{GuestRam, Ram, RamError, RamSlice};
use device_model::time::Instant;

use tunnel::{
    Peer, Region, Tunnel,
    fake::{self, Fabric},
};
use vm_memory::{Address, GuestMemoryBackend, GuestMemoryRegion};

use super::Node;
use super::wire::Rng;

/// The carrier of a world. Test binaries named `direct` and `tunnelled` have channels, and thereby run what the others run on
/// the wire.
#[derive(Clone, Debug)]
pub enum Carrier {
    Wire,
    /// A channel: of one host, or in test binaries named `tunnelled` of two.
    Direct,
    /// A channel comes or goes in this many percent of steps.
    Changing(u64, Rng),
}

impl Default for Carrier {
    fn default() -> Self {
        match env!("CARGO_CRATE_NAME") {
            "direct" | "tunnelled" => Self::Direct,
            _ => Self::Wire,
        }
    }
}

/// How long the first parts of a long READ take, before the peer has been asked for the others.
pub fn part_of_a_read() -> Duration {
    // A payload that is fetched takes a flight more.
    Duration::from_micros(if is_tunnelled() { 16 } else { 11 })
}

fn is_tunnelled() -> bool {
    env!("CARGO_CRATE_NAME") == "tunnelled"
}

/// Records one channel holds.
const ROOM: usize = 24;

/// One direction of a channel.
#[derive(Debug, Default)]
struct Queue {
    hidden: Vec<Vec<u8>>,
    /// With the time of their arrival, once the world has given them one.
    flying: VecDeque<(Option<Instant>, Vec<u8>)>,
    shown: VecDeque<Vec<u8>>,
    /// The receiver may still read what its latest record refers to.
    busy: bool,
    /// Both ends are there.
    up: bool,
}

/// One end of a channel in memory.
pub struct TestChannel {
    out: Arc<Mutex<Queue>>,
    inbound: Arc<Mutex<Queue>>,
    peer: Arc<Ram>,
}

impl Channel for TestChannel {
    fn send(&mut self, record: &[u8]) -> bool {
        assert!(record.len() <= MAX_RECORD);
        let mut queue = self.out.lock().unwrap();
        let room = queue.hidden.len() + queue.flying.len() + queue.shown.len() < ROOM;
        if room {
            queue.hidden.push(record.to_vec());
        }
        room
    }

    fn flush(&mut self) {
        let queue = &mut *self.out.lock().unwrap();
        queue.flying.extend(queue.hidden.drain(..).map(|record| (None, record)));
    }

    fn recv(&mut self, buf: &mut [u8]) -> Option<usize> {
        let mut queue = self.inbound.lock().unwrap();
        let record = queue.shown.pop_front();
        queue.busy = record.is_some();
        record.map(|record| {
            buf[..record.len()].copy_from_slice(&record);
            record.len()
        })
    }

    fn may_use(&self, source: IpAddr) -> bool {
        !source.is_multicast()
    }

    fn reaches(&self, gpa: u64, len: u32) -> bool {
        GuestRam::slice(&*self.peer, gpa, len as usize).is_ok()
    }

    fn pull(&self, gpa: u64, to: &RamSlice<'_>) -> Result<(), RamError> {
        GuestRam::slice(&*self.peer, gpa, to.len())?.copy_to_volatile_slice(*to);
        Ok(())
    }

    fn is_settled(&mut self) -> bool {
        let queue = self.out.lock().unwrap();
        queue.hidden.is_empty() && queue.flying.is_empty() && queue.shown.is_empty() && !queue.busy
    }

    fn wait(&mut self) -> bool {
        // The other device runs in this thread: it does not move while it is waited for.
        self.out.lock().unwrap().up = false;
        false
    }

    fn rest(&mut self) -> bool {
        self.inbound.lock().unwrap().shown.is_empty()
    }

    fn is_up(&self) -> bool {
        self.out.lock().unwrap().up && self.inbound.lock().unwrap().up
    }
}

/// Who gives an end up takes it away from the other.
impl Drop for TestChannel {
    fn drop(&mut self) {
        self.out.lock().unwrap().up = false;
    }
}

/// The channel of a world.
#[derive(Default)]
pub struct Wires {
    queues: Option<[Arc<Mutex<Queue>>; 2]>,
    fabric: Option<Fabric>,
}

impl Wires {
    /// Connects both nodes, or takes the channel away, as the carrier says.
    pub fn tend(&mut self, carrier: &mut Carrier, nodes: &mut [Node; 2]) {
        let up = |queues: &[Arc<Mutex<Queue>>; 2]| queues.iter().all(|queue| queue.lock().unwrap().up);
        let connected =
            self.queues.as_ref().is_some_and(up) || self.fabric.as_ref().is_some_and(Fabric::is_up);
        match carrier {
            Carrier::Direct if !connected => self.attach(nodes),
            Carrier::Wire | Carrier::Direct => {}
            Carrier::Changing(percent, rng) => {
                if rng.percent(*percent) {
                    match (&self.queues, &self.fabric) {
                        (Some(queues), _) if connected => {
                            queues[rng.below(2) as usize].lock().unwrap().up = false;
                        }
                        (_, Some(fabric)) if connected => fabric.cut(),
                        _ => self.attach(nodes),
                    }
                }
            }
        }
    }

    fn attach(&mut self, nodes: &mut [Node; 2]) {
        if is_tunnelled() {
            self.attach_tunnel(nodes);
        } else {
            self.attach_queues(nodes);
        }
    }

    fn attach_tunnel(&mut self, nodes: &mut [Node; 2]) {
        let (fabric, outer) = fake::pair([0, 1].map(|n: usize| nodes[n].ram.clone() as Arc<dyn GuestRam>));
        for (n, outer) in outer.into_iter().enumerate() {
            let peer = &nodes[1 - n];
            let regions = peer
                .ram
                .iter()
                .map(|region| Region { gpa: region.start_addr().raw_value(), len: region.len() });
            let (mac, terms) = (peer.mac, Peer { regions: regions.collect(), addresses: None });
            nodes[n].provider.attach(mac, Box::new(Tunnel::new(outer, terms)));
        }
        self.fabric = Some(fabric);
    }

    fn attach_queues(&mut self, nodes: &mut [Node; 2]) {
        let queue = || Arc::new(Mutex::new(Queue { up: true, ..Queue::default() }));
        let queues = [queue(), queue()];
        for n in 0..2 {
            let peer = &nodes[1 - n];
            let (mac, ram) = (peer.mac, Arc::clone(&peer.ram));
            let (out, inbound) = (Arc::clone(&queues[n]), Arc::clone(&queues[1 - n]));
            nodes[n].provider.attach(mac, Box::new(TestChannel { out, inbound, peer: ram }));
        }
        self.queues = Some(queues);
    }

    /// Gives what was sent until now its time of arrival; returns the next one.
    pub fn depart(&mut self, arrival: Instant) -> Option<Instant> {
        let queues = self.queues.iter().flatten();
        let next = queues.filter_map(|queue| {
            let queue = &mut *queue.lock().unwrap();
            queue.flying.iter_mut().for_each(|(at, _)| *at = Some(at.unwrap_or(arrival)));
            queue.flying.front().filter(|_| queue.up).and_then(|(at, _)| *at)
        });
        next.chain(self.fabric.as_ref().and_then(|fabric| fabric.depart(arrival))).min()
    }

    /// Lets what has arrived be seen.
    pub fn arrive(&mut self, now: Instant) {
        if let Some(fabric) = &self.fabric {
            fabric.arrive(now);
        }
        for queue in self.queues.iter().flatten() {
            let queue = &mut *queue.lock().unwrap();
            while let Some((at, _)) = queue.flying.front()
                && at.is_some_and(|at| at <= now)
            {
                queue.shown.extend(queue.flying.pop_front().map(|(_, record)| record));
            }
        }
    }
}
