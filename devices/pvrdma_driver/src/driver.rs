//! Probe, commands, device rings, removal.

use core::fmt;

use pvrdma_spec::command::{Opcode, RESPONSE_FLAG, RESPONSE_SIZE, ResponseHeader};
use pvrdma_spec::event::{Cqne, Eqe};
use pvrdma_spec::queue::RX_OFFSET;
use pvrdma_spec::register::{Control, Register};
use pvrdma_spec::shared::{CAPS_OFFSET, DeviceCaps, GidType, RingPageInfo, SharedRegion};
use pvrdma_spec::{PAGE_SIZE, version};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::{Buffer, Platform, Ring};

/// Pages that Linux gives each device ring.
const RING_PAGES: u64 = 4;

/// What went wrong, as a driver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// `ERR` was not zero after a request or a control write.
    Device(u32),
    /// No response came.
    Timeout,
    /// A response to another command.
    Ack(u32),
    /// The error of a response.
    Response(u8),
    /// The capabilities are none that the driver supports.
    Unsupported,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => write!(f, "Device error {error}"),
            Self::Timeout => f.write_str("No response"),
            Self::Ack(ack) => write!(f, "Response {ack:#x} to another command"),
            Self::Response(error) => write!(f, "Response with error {error}"),
            Self::Unsupported => f.write_str("Device not supported"),
        }
    }
}

impl core::error::Error for Error {}

/// A bound device.
#[derive(Debug)]
pub struct Driver<P> {
    pub(crate) platform: P,
    caps: DeviceCaps,
    /// Page of the shared region.
    pub region: u64,
    /// Page of the command slot.
    pub command_slot: u64,
    /// Page of the response slot.
    pub response_slot: u64,
    /// Pages of the asynchronous event ring.
    pub events: Buffer,
    /// Pages of the completion notification ring.
    pub notifications: Buffer,
    version: u32,
}

/// A device ring of elements of type `T` as Linux lays it out.
const fn device_ring<T>() -> Ring {
    let stride = size_of::<T>() as u32;
    let slots = ((RING_PAGES - 1) * PAGE_SIZE) as u32 / stride;
    Ring { state: RX_OFFSET, base: PAGE_SIZE, slots, stride }
}

impl<P: Platform> Driver<P> {
    /// Brings the device up as the Linux driver of this version does, up to `CTL`.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] and [`Error::Device`].
    pub fn probe(platform: P, driver_version: u32) -> Result<Self, Error> {
        let device_version = platform.read_register(Register::Version);
        let [region, command_slot, response_slot] = [(); 3].map(|()| platform.alloc_page());
        let [events, notifications] = [(); 2].map(|()| Buffer::new(&platform, RING_PAGES * PAGE_SIZE));
        let info = |buffer: &Buffer| RingPageInfo {
            num_pages: buffer.pages.len() as u32,
            reserved: 0,
            pdir_dma: buffer.dir.root,
        };
        let mut shared = SharedRegion::new_zeroed();
        shared.driver_version = driver_version;
        shared.cmd_slot_dma = command_slot;
        shared.resp_slot_dma = response_slot;
        shared.async_ring_pages = info(&events);
        shared.cq_ring_pages = info(&notifications);
        shared.uar_pfn = platform.doorbell_pfn();
        platform.write(region, shared.as_bytes());
        platform.write_register(Register::DsrLow, region as u32);
        platform.write_register(Register::DsrHigh, (region >> 32) as u32);
        let mut caps = DeviceCaps::new_zeroed();
        platform.read(region + CAPS_OFFSET, caps.as_mut_bytes());
        let driver = Self {
            platform,
            caps,
            region,
            command_slot,
            response_slot,
            events,
            notifications,
            version: driver_version,
        };
        if !supported(device_version, &caps) {
            return Err(Error::Unsupported);
        }
        driver.platform.write_register(Register::Imr, 0);
        driver.control(Control::Activate as u32)?;
        Ok(driver)
    }

    /// Brings the device down. The caller has destroyed what it created, or does not mind.
    pub fn remove(self) -> P {
        self.platform.write_register(Register::Imr, u32::MAX);
        self.platform.write_register(Register::Ctl, Control::Reset as u32);
        self.events.free(&self.platform);
        self.notifications.free(&self.platform);
        for page in [self.region, self.command_slot, self.response_slot] {
            self.platform.free_page(page);
        }
        self.platform
    }

    /// The machine.
    pub const fn platform(&self) -> &P {
        &self.platform
    }

    /// Capabilities, as read at probe.
    pub const fn caps(&self) -> &DeviceCaps {
        &self.caps
    }

    /// Version the driver said it has.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Writes `CTL` and reads `ERR`.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn control(&self, value: u32) -> Result<(), Error> {
        self.platform.write_register(Register::Ctl, value);
        self.check()
    }

    fn check(&self) -> Result<(), Error> {
        match self.platform.read_register(Register::Err) {
            0 => Ok(()),
            error => Err(Error::Device(error)),
        }
    }

    /// Sends any bytes as a request and reads `ERR`, without waiting for a response.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn post(&self, request: &[u8]) -> Result<(), Error> {
        self.platform.write(self.command_slot, request);
        self.platform.write_register(Register::Request, 0);
        self.check()
    }

    /// Sends a command that has no response. `request` starts with a header, which is filled in here.
    ///
    /// # Errors
    ///
    /// [`Error::Device`].
    pub fn tell<T: IntoBytes + Immutable>(&self, opcode: Opcode, request: &T) -> Result<(), Error> {
        self.post(&with_opcode(opcode, request))
    }

    /// Sends a command and waits for its response. `request` starts with a header, which is filled in here.
    ///
    /// # Errors
    ///
    /// All but [`Error::Unsupported`].
    pub fn ask<T: IntoBytes + Immutable, R: FromBytes + KnownLayout + Immutable>(
        &self,
        opcode: Opcode,
        request: &T,
    ) -> Result<R, Error> {
        self.tell(opcode, request)?;
        if !self.platform.wait_response() {
            return Err(Error::Timeout);
        }
        let mut response = [0; RESPONSE_SIZE];
        self.platform.read(self.response_slot, &mut response);
        let header =
            ResponseHeader::read_from_prefix(&response).map_or_else(|_| FromZeros::new_zeroed(), |(h, _)| h);
        if header.ack != opcode as u32 | RESPONSE_FLAG {
            return Err(Error::Ack(header.ack));
        }
        if opcode == Opcode::ModifyQp && header.err != 0 {
            return Err(Error::Response(header.err));
        }
        Ok(R::read_from_prefix(&response).map_or_else(|_| R::new_zeroed(), |(response, _)| response))
    }

    /// The next asynchronous event.
    pub fn next_event(&self) -> Option<Eqe> {
        device_ring::<Eqe>().pop(&self.platform, &self.events)
    }

    /// The handle of the next completion queue to look at.
    pub fn next_notification(&self) -> Option<u32> {
        device_ring::<Cqne>().pop(&self.platform, &self.notifications).map(|Cqne { info }| info)
    }
}

/// Whether the Linux driver would bind.
fn supported(device_version: u32, caps: &DeviceCaps) -> bool {
    let v1 = GidType::ROCE_V1.bits();
    let v2 = GidType::ROCE_V2.bits();
    let types = match device_version {
        version::ROCE_V1 => caps.gid_types == v1,
        version::ROCE_V2.. => caps.gid_types == v1 || caps.gid_types == v2,
        _ => false,
    };
    types && caps.mode == 0 && caps.max_uar.is_power_of_two()
}

/// A request with its command number in place.
fn with_opcode<T: IntoBytes + Immutable>(
    opcode: Opcode,
    request: &T,
) -> [u8; pvrdma_spec::command::REQUEST_SIZE] {
    let mut bytes = [0; pvrdma_spec::command::REQUEST_SIZE];
    let body = request.as_bytes();
    bytes[..body.len()].copy_from_slice(body);
    bytes[8..12].copy_from_slice(&(opcode as u32).to_le_bytes());
    bytes
}
