//! Events: completions of a control queue that complete no command.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::connect::Name;
use super::{Error, HEADER, Status, exactly, head};

/// Longest address in a redirect.
const MAX_ADDRESS: usize = 255;

layout! {
    /// An event.
    EventLayout [16] {
        status: U16 = 0,
        id: U16 = 2,
        body: U32 = 4,
        code: U32 = 8,
        arg: U32 = 12,
    }
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The target is there.
    Keepalive,
    /// Configuration changed; this is its generation.
    ConfigChange(u32),
    /// The device status changed, to this.
    DeviceStatus(u32),
    /// The device has moved; the body, of this many bytes, is a [`Redirect`].
    Redirect(u32),
    /// The target will close in this many milliseconds.
    Drain(u32),
    /// The target closes now, because of this.
    Terminate(Status),
}

impl Event {
    /// Parses an event's header.
    ///
    /// # Errors
    ///
    /// [`Error::Short`], [`Error::Event`].
    pub fn parse(bytes: &[u8]) -> Result<Event, Error> {
        let header = head::<HEADER>(bytes)?;
        let e = EventLayout::read_from_bytes(header).expect("the sizes are equal");
        match e.id.get() {
            0xffff => Ok(Event::Keepalive),
            0xfffe => Ok(Event::ConfigChange(e.body.get())),
            0xfffd => Ok(Event::DeviceStatus(e.code.get())),
            0xfffc => Ok(Event::Redirect(e.body.get())),
            0xfffb => Ok(Event::Drain(e.arg.get())),
            0xfff9 => Ok(Event::Terminate((e.code.get() as u16).into())),
            id => Err(Error::Event(id)),
        }
    }

    /// The header's bytes.
    pub fn emit(&self) -> [u8; HEADER] {
        let (id, body, code, arg) = match *self {
            Event::Keepalive => (0xffff, 0, 0, 0),
            // The base profile has the generation where the extension has the length of the body.
            Event::ConfigChange(generation) => (0xfffe, generation, 0, 0),
            Event::DeviceStatus(status) => (0xfffd, 0, status, 0),
            Event::Redirect(body) => (0xfffc, body, 0, 0),
            Event::Drain(ms) => (0xfffb, 0, 0, ms),
            Event::Terminate(status) => (0xfff9, 0, status as u32, 0),
        };
        let layout = EventLayout {
            status: 0.into(),
            id: U16::new(id),
            body: body.into(),
            code: code.into(),
            arg: arg.into(),
        };
        layout.as_bytes().try_into().expect("the sizes are equal")
    }

    /// Bytes that follow the header on a stream.
    pub fn stream_body(&self) -> u64 {
        if let Event::Redirect(body) = *self { body.into() } else { 0 }
    }
}

layout! {
    /// The body of a redirect, without the address that follows.
    RedirectLayout [260] {
        addr_len: U16 = 0,
        port: U16 = 2,
        target: [u8; 256] = 4,
    }
}

/// Where a device has gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Its name there.
    pub target: Name,
    /// Host name or address, as text.
    pub address: String,
    /// Port.
    pub port: u16,
}

impl Redirect {
    /// Parses the body.
    ///
    /// # Errors
    ///
    /// [`Error`] names what is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let (r, address) = RedirectLayout::ref_from_prefix(bytes)
            .map_err(|_| Error::Short { got: bytes.len(), want: size_of::<RedirectLayout>() })?;
        exactly(address, r.addr_len.get().into())?;
        if address.is_empty() || address.len() > MAX_ADDRESS {
            return Err(Error::Length("address"));
        }
        let address = str::from_utf8(address).map_err(|_| Error::Name("address is not UTF-8"))?;
        if address.chars().any(char::is_control) {
            return Err(Error::Name("control character in an address"));
        }
        Ok(Redirect { target: Name::parse(&r.target)?, address: address.to_owned(), port: r.port.get() })
    }

    /// The body's bytes.
    pub fn emit(&self) -> Vec<u8> {
        let layout = RedirectLayout {
            addr_len: (self.address.len() as u16).into(),
            port: self.port.into(),
            target: self.target.emit(),
        };
        [layout.as_bytes(), self.address.as_bytes()].concat()
    }
}
