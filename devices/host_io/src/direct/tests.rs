//! Machines on a real switch, which get channels to each other.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use device_model::direct::{Exchange, MAX_RECORD};
use device_model::ram::GuestRam;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::bitmap::{AtomicBitmap, NewBitmap};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap};

use super::memory::{PeerMemory, share};
use super::*;
use crate::switch::{Options, SwitchLink, SwitchLinkOptions, SwitchThread};
use crate::testing::{frame, mac, send};
use device_model::direct::Channel;
use device_model::net::MacAddr;
use device_model::ram::Ram;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const SIZE: u64 = 2 << 20;

fn memory_file(seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, SIZE).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn sealed() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

/// Two parts of one file, the second half of it first.
fn ram(seals: SealFlags) -> Arc<Ram> {
    let file = Arc::new(File::from(memory_file(seals)));
    let region = |gpa, offset| {
        let half = (SIZE / 2) as usize;
        let region = MmapRegionBuilder::new_with_bitmap(half, AtomicBitmap::with_len(half))
            .with_file_offset(FileOffset::from_arc(Arc::clone(&file), offset))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED)
            .build()
            .unwrap();
        GuestRegionMmap::new(region, GuestAddress(gpa)).unwrap()
    };
    Arc::new(Ram::from_regions(vec![region(0, SIZE / 2), region(1 << 32, 0)]).unwrap())
}

struct Machine {
    driver: Driver,
    handle: Handle,
    ram: Arc<Ram>,
    _link: SwitchLink,
}

impl Machine {
    fn new(path: &Path, number: u8, addresses: Option<Vec<IpAddr>>) -> Self {
        let link = SwitchLink::connect(path, &SwitchLinkOptions::default()).unwrap();
        // The switch learns where the machine is.
        send(&link, &frame(MacAddr::BROADCAST, mac(number), 60, 0));
        let ram = ram(sealed());
        let options =
            DriverOptions { switch: path.to_path_buf(), mac: mac(number), addresses, ram: Arc::clone(&ram) };
        let (driver, handle) = Driver::new(options).unwrap();
        Self { driver, handle, ram, _link: link }
    }

    fn process(&mut self) {
        let mut fds = [PollFd::new(&self.driver, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 })).unwrap();
        self.driver.process();
    }
}

/// Lets both machines work until each has a channel to the other.
fn channels(a: &mut Machine, b: &mut Machine) -> [Box<dyn Channel>; 2] {
    let (mut first, mut second) = (None, None);
    let start = Instant::now();
    while first.is_none() || second.is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "no channel");
        a.process();
        b.process();
        first = first.or_else(|| a.handle.poll());
        second = second.or_else(|| b.handle.poll());
    }
    [first, second].map(|made| made.unwrap().1)
}

struct Lab {
    _dir: tempfile::TempDir,
    path: PathBuf,
    _switch: SwitchThread,
}

fn lab() -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("switch.sock");
    let switch = SwitchThread::spawn(&path, Options::default()).unwrap();
    Lab { _dir: dir, path, _switch: switch }
}

fn pair(lab: &Lab) -> (Machine, Machine, [Box<dyn Channel>; 2]) {
    let mut a = Machine::new(&lab.path, 1, Some(vec!["10.0.0.1".parse().unwrap()]));
    let mut b = Machine::new(&lab.path, 2, None);
    a.handle.want(mac(2));
    b.handle.want(mac(1));
    let both = channels(&mut a, &mut b);
    (a, b, both)
}

fn recv(channel: &mut dyn Channel) -> Option<Vec<u8>> {
    let mut buf = [0; MAX_RECORD];
    channel.recv(&mut buf).map(|len| buf[..len].to_vec())
}

#[test]
fn machines_on_one_switch_read_each_others_memory() {
    let lab = lab();
    let (a, b, [mut to_b, mut to_a]) = pair(&lab);
    let text = b"all of it is in one piece";
    let source: &dyn GuestRam = &*a.ram;
    source.write((1 << 32) + 5, text).unwrap();
    assert!(to_b.send(b"look there"));
    to_b.flush();
    assert_eq!(recv(&mut *to_a).as_deref(), Some(&b"look there"[..]));
    assert!(!to_b.is_settled());
    let place = GuestRam::slice(&*b.ram, 0x1000, text.len()).unwrap();
    to_a.pull((1 << 32) + 5, &place).unwrap();
    assert_eq!(recv(&mut *to_a), None);
    assert!(to_b.is_settled());
    let mut got = vec![0; text.len()];
    (&*b.ram as &dyn GuestRam).read(0x1000, &mut got).unwrap();
    assert_eq!(got, text);
    assert!(to_a.may_use("10.0.0.1".parse().unwrap()) && !to_a.may_use("10.0.0.2".parse().unwrap()));
    assert!(to_b.may_use("10.0.0.9".parse().unwrap()));
    assert!(to_a.reaches(SIZE / 2 - 1, 1) && !to_a.reaches(SIZE / 2 - 1, 2) && !to_a.reaches(u64::MAX, 1));
    assert!(to_a.pull(SIZE / 2, &place).is_err());
}

#[test]
fn resting_machine_is_woken() {
    let lab = lab();
    let (mut a, _b, [mut to_b, mut to_a]) = pair(&lab);
    assert!(to_b.rest());
    assert!(to_a.send(b"wake up"));
    to_a.flush();
    let mut fds = [PollFd::new(&a.driver, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap(), 1);
    a.driver.process();
    assert_eq!(recv(&mut *to_b).as_deref(), Some(&b"wake up"[..]));
}

#[test]
fn peer_that_closes_ends_the_channel_and_another_is_made() {
    let lab = lab();
    let (mut a, mut b, [to_b, to_a]) = pair(&lab);
    drop(to_a);
    assert!(!to_b.is_up());
    drop(to_b);
    let [to_b, to_a] = channels(&mut a, &mut b);
    assert!(to_b.is_up() && to_a.is_up());
}

#[test]
fn peer_that_does_not_let_go_is_waited_for_and_then_loses_the_channel() {
    let lab = lab();
    let (_a, _b, [mut to_b, mut to_a]) = pair(&lab);
    assert!(to_b.send(b"never taken"));
    to_b.flush();
    assert!(!to_b.is_settled());
    while to_b.wait() {}
    assert!(!to_b.is_up() && !to_a.is_up());
    assert_eq!(recv(&mut *to_a), None);
}

#[test]
fn machine_gets_no_channel_at_an_address_where_it_has_no_port() {
    let lab = lab();
    let mut a = Machine::new(&lab.path, 1, None);
    let mut b = Machine::new(&lab.path, 2, None);
    // Says that it is machine 3, which the switch has never seen.
    let options =
        DriverOptions { switch: lab.path.clone(), mac: mac(3), addresses: None, ram: Arc::clone(&a.ram) };
    let (mut liar, mut handle) = Driver::new(options).unwrap();
    a.handle.want(mac(3));
    handle.want(mac(2));
    a.handle.want(mac(2));
    for _ in 0..20 {
        a.process();
        b.process();
        liar.process();
    }
    assert!(handle.poll().is_none());
    assert_eq!(a.handle.poll().map(|(peer, _)| peer), Some(mac(2)));
    assert!(a.handle.poll().is_none());
}

#[test]
fn memory_that_could_shrink_is_neither_shared_nor_mapped() {
    assert!(share(&ram(SealFlags::SHRINK | SealFlags::GROW)).is_err());
    let range = |len, offset| [super::memory::Range { gpa: 0, len, offset }];
    let map = |seals, range: &[super::memory::Range]| PeerMemory::map(memory_file(seals), range);
    assert!(map(sealed(), &range(SIZE, 0)).is_ok());
    assert!(map(SealFlags::GROW | SealFlags::SEAL, &range(SIZE, 0)).is_err());
    for bad in [range(SIZE, 4096), range(0, 0), range(u64::MAX, 1), range(SIZE + 1, 0), range(4096, 1)] {
        assert!(map(sealed(), &bad).is_err(), "{bad:?}");
    }
    assert!(PeerMemory::map(File::open("/dev/null").unwrap().into(), &range(SIZE, 0)).is_err());
}

#[test]
fn file_is_shared_for_reading_only() {
    let (file, ranges) = share(&ram(sealed())).unwrap();
    assert_eq!(ranges.len(), 2);
    assert!(rustix::io::write(&file, &[1]).is_err());
}
