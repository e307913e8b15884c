//! Both ends over TCP, and over RDMA on good and bad networks: a disk in a file, several queues, targets that are killed, bad checksums, bad peers.

mod rig;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rig::{Carrier, LIMIT, Rig, SIZE, name};
use virtio_fabric::initiator::{self, Filled, Output, Token};
use virtio_fabric::target::FEATURES;
use virtio_fabric::wire::{Features, HEADER, Status};
use virtio_fabric::{Client, Via, discover};

/// Connects and waits until the device is there.
fn connect(rig: &Rig, config: initiator::Config) -> Disc {
    let client = Client::new(config, rig.via(), vec![rig.address]).unwrap();
    let mut disc = Disc { client, done: BTreeMap::new(), config: Vec::new(), events: Vec::new() };
    disc.until(|disc| disc.events.iter().any(|event| matches!(event, Output::Ready { .. })));
    disc
}

/// A driver's view of the disk.
struct Disc {
    client: Client,
    done: BTreeMap<Token, Result<Filled, Status>>,
    config: Vec<u8>,
    events: Vec<Output>,
}

impl Disc {
    fn step(&mut self) {
        self.client.wait(Duration::from_secs(1)).unwrap();
        self.client.run().unwrap();
        while let Some(event) = self.client.event() {
            match event {
                Output::Completed(token, result) => assert!(self.done.insert(token, result).is_none()),
                Output::Config(config) => self.config = config,
                event => self.events.push(event),
            }
        }
    }

    fn until(&mut self, what: impl Fn(&Disc) -> bool) {
        let start = Instant::now();
        while !what(self) {
            assert!(start.elapsed() < LIMIT, "{:?}, {:?}", self.events, self.client.trouble());
            self.step();
        }
    }

    fn submit(&mut self, vq: u16, kind: u32, sector: u64, data: &[u8], in_length: u32) -> Token {
        let mut out = [kind.to_le_bytes(), [0; 4]].concat();
        out.extend_from_slice(&sector.to_le_bytes());
        out.extend_from_slice(data);
        let token = self.client.submit(vq, Bytes::from(out), in_length).unwrap();
        self.client.settle();
        token
    }

    fn result(&mut self, token: Token) -> Filled {
        self.until(|disc| disc.done.contains_key(&token));
        self.done.remove(&token).unwrap().unwrap()
    }

    fn status(&mut self, token: Token) -> u8 {
        let filled = self.result(token);
        filled.tail.last().or(filled.data.last()).copied().unwrap()
    }

    fn write(&mut self, vq: u16, sector: u64, data: &[u8]) -> Token {
        self.submit(vq, 1, sector, data, 1)
    }

    fn read(&mut self, vq: u16, sector: u64, length: usize) -> Vec<u8> {
        let token = self.submit(vq, 0, sector, &[], length as u32 + 1);
        let filled = self.result(token);
        let bytes = [filled.data, filled.tail].concat();
        assert_eq!((bytes.len(), bytes[length]), (length + 1, 0));
        bytes[..length].to_vec()
    }
}

#[test]
fn a_disk_is_read_and_written_in_every_mode() {
    let plain = FEATURES.difference(Features::FRAME | Features::DIGEST);
    let frames = FEATURES.difference(Features::DIGEST);
    let no_immediates = FEATURES.difference(Features::IMM_COMP);
    for (carrier, features) in [
        (Carrier::Tcp, FEATURES),
        (Carrier::Tcp, frames),
        (Carrier::Tcp, plain),
        (Carrier::Tcp, Features::empty()),
        (Carrier::Rdma, FEATURES),
        (Carrier::Rdma, no_immediates),
        (Carrier::BadRdma, FEATURES),
    ] {
        let rig = Rig::over(carrier, features);
        let config = initiator::Config { queues: 2, queue_size: 8, ..rig.config("disk0") };
        let mut disc = connect(&rig, config);
        assert_eq!(disc.config[..8], (SIZE / 512).to_le_bytes());
        let patterns: Vec<Vec<u8>> =
            [512, 4096, 65536, 1 << 20].map(|n| (0..n).map(|b| (b % 251) as u8).collect()).into();
        for (n, data) in patterns.iter().enumerate() {
            let token = disc.write(n as u16 % 2, n as u64 * 2048, data);
            assert_eq!(disc.status(token), 0);
            assert!(disc.read(1 - n as u16 % 2, n as u64 * 2048, data.len()) == *data);
        }
        let mut on_disk = vec![0; 1 << 20];
        rig.image().read_exact_at(&mut on_disk, 3 * (1 << 20)).unwrap();
        assert!(on_disk == patterns[3]);
        // Flush, discard, write zeroes, get-id.
        let flush = disc.submit(0, 4, 0, &[], 1);
        assert_eq!(disc.status(flush), 0);
        let range = |sector: u64, sectors: u32, flags: u32| {
            [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
        };
        for (kind, flags) in [(11, 0), (13, 0), (13, 1)] {
            let token = disc.submit(0, kind, 0, &range(3 * 2048 + 8, 16, flags), 1);
            assert_eq!(disc.status(token), 0);
        }
        let data = disc.read(0, 3 * 2048 + 7, 18 * 512);
        assert!(data[..512] == patterns[3][7 * 512..8 * 512] && data[512..17 * 512].iter().all(|b| *b == 0));
        let id = disc.submit(1, 8, 0, &[], 21);
        let id = disc.result(id);
        assert_eq!([id.data, id.tail].concat()[..4], *b"id0\0");
        // What a disk refuses.
        for (kind, sector, data, in_length, status) in [
            (0, SIZE / 512, &[][..], 513, 1),
            (0, u64::MAX, &[], 513, 1),
            (0, 0, &[], 514, 1),
            (1, SIZE / 512 - 1, &[0; 1024], 1, 1),
            (1, 0, &[0; 511], 1, 1),
            (11, 0, &[0; 15], 1, 1),
            (13, 0, &range(0, 8, 2), 1, 2),
            (99, 0, &[], 1, 2),
        ] {
            let token = disc.submit(0, kind, sector, data, in_length);
            assert_eq!(disc.status(token), status, "{kind} {sector}");
        }
        // And what has no place for a status.
        let token = disc.submit(0, 0, 0, &[], 0);
        disc.until(|disc| disc.done.contains_key(&token));
        assert_eq!(disc.done[&token], Err(Status::Protocol));
    }
}

/// Writes go on while the target is killed, or drained, and started again; all of them succeed and are on the disk.
#[test]
fn a_target_that_is_started_again_costs_time_only() {
    for (drain, carrier) in [false, true].into_iter().flat_map(|drain| Carrier::ALL.map(|it| (drain, it))) {
        let mut rig = Rig::over(carrier, FEATURES);
        rig.restart(drain, || {});
        let mut disc = connect(&rig, initiator::Config { queues: 2, ..rig.config("disk0") });
        let mut expected: BTreeMap<u64, u8> = BTreeMap::new();
        for round in 0..6_u64 {
            let tokens: Vec<_> = (0..100)
                .map(|n| {
                    let (sector, fill) = ((n * 37 + round) % 1000 * 8, (round * 100 + n) as u8);
                    expected.insert(sector, fill);
                    disc.write(n as u16 % 2, sector, &[fill; 4096])
                })
                .collect();
            disc.step();
            rig.restart(drain, || disc.step());
            for token in tokens {
                assert_eq!(disc.status(token), 0);
            }
        }
        assert!(disc.events.contains(&Output::Resumed));
        for (sector, fill) in expected {
            assert!(disc.read(0, sector, 4096).iter().all(|byte| *byte == fill), "Sector {sector}");
        }
    }
}

#[test]
fn a_disk_grows_while_it_is_used() {
    for carrier in Carrier::ALL {
        let rig = Rig::over(carrier, FEATURES);
        let mut disc = connect(&rig, rig.config("disk0"));
        rig.image().set_len(2 * SIZE).unwrap();
        rig.refresh();
        disc.until(|disc| disc.config[..8] == (2 * SIZE / 512).to_le_bytes());
        assert_eq!(disc.read(0, SIZE / 512, 512), [0; 512]);
    }
}

#[test]
fn what_a_target_exports_is_told() {
    for carrier in Carrier::ALL {
        let rig = Rig::over(carrier, FEATURES);
        let found = discover(name("me"), rig.via(), vec![rig.address], LIMIT).unwrap();
        let found: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.device, it.virtqueues)).collect();
        assert_eq!(found, [("disk0", 2, 2), ("rng", 4, 1)]);
        let mut rng = connect(&rig, rig.config("rng"));
        let token = rng.client.submit(0, Bytes::new(), 64).unwrap();
        rng.client.settle();
        let filled = rng.result(token);
        let bytes = [filled.data, filled.tail].concat();
        assert!(filled.used == 64 && bytes.len() == 64 && bytes.iter().any(|byte| *byte != 0));
        // Nothing of that name.
        let mut client = Client::new(rig.config("tape"), rig.via(), vec![rig.address]).unwrap();
        let closed = std::iter::repeat_with(|| {
            client.wait(Duration::from_secs(1)).unwrap();
            client.run().unwrap();
            client.event()
        });
        assert_eq!(closed.flatten().next(), Some(Output::Closed(Status::NoTarget)));
    }
    // Nobody there.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(discover(name("me"), Via::Tcp, vec![nobody], LIMIT).unwrap_err().to_string().contains("refused"));
}

/// Peers that send rubbish, stop in the middle or never read cost themselves their connection and others nothing.
#[test]
fn bad_peers_hurt_themselves_only() {
    let rig = Rig::new(FEATURES);
    let mut disc = connect(&rig, rig.config("disk0"));
    let mut peers = Vec::new();
    for n in 0..200_u32 {
        let Ok(mut peer) = TcpStream::connect(rig.address) else { continue };
        let mut bytes: Vec<u8> = (0..n * 7).map(|byte| (byte * n) as u8).collect();
        if n % 3 == 0 {
            // A Connect that promises more than it brings, or far too much.
            bytes = vec![0; HEADER];
            bytes[4..12].copy_from_slice(&[0xff, 0xff, 0, 0, 0, 4, if n % 2 == 0 { 0 } else { 0xff }, 0]);
        }
        let _ = peer.write_all(&bytes);
        if n % 4 != 0 {
            peers.push(peer);
        }
        let token = disc.write(0, u64::from(n), &[n as u8; 512]);
        assert_eq!(disc.status(token), 0);
    }
    // All of them are closed within the time a Connect may take.
    for mut peer in peers {
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        let mut rest = Vec::new();
        match peer.read_to_end(&mut rest) {
            Ok(_) => assert!(rest.len() <= 64),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    assert_eq!(disc.read(0, 100, 512), [100; 512]);
}

#[test]
fn time_outs_end_what_a_dead_target_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = initiator::Config {
        target: name("disk0"),
        connect_timeout: Duration::from_millis(100),
        loss_timeout: Duration::from_millis(300),
        backoff: Duration::from_millis(20),
        ..initiator::Config::default()
    };
    let mut client = Client::new(config, Via::Tcp, vec![address]).unwrap();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LIMIT);
        client.wait(Duration::from_secs(1)).unwrap();
        client.run().unwrap();
        if let Some(event) = client.event() {
            assert_eq!(event, Output::Closed(Status::Stale));
            return;
        }
    }
}
