//! The text of a port.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Smallest MTU of a port: what IPv6 requires of every link (RFC 8200, section 5).
pub const MIN_MTU: u16 = 1280;
/// What is at the other end of a port's cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The switch that listens at this UNIX socket.
    Switch(PathBuf),
    /// One peer, reached by UDP.
    Udp {
        /// Address to listen at.
        local: SocketAddr,
        /// Address of the only peer.
        peer: SocketAddr,
    },
    /// The host's interface of this name.
    Tap(String),
    /// Nobody, with the link up.
    Loopback,
    /// Nobody, with the link down.
    Unplugged,
}

/// A port to be opened: parsed from the text of a [`Backend`], with options set by the methods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// What the cable leads to.
    pub backend: Backend,
    /// Largest IP packet in bytes; by default what the other end allows.
    pub mtu: Option<u16>,
    /// Name for the statistics of a switch.
    pub name: String,
}

impl PortSpec {
    /// Sets the MTU; `None` leaves it to the other end.
    #[must_use]
    pub fn with_mtu(mut self, mtu: Option<u16>) -> Self {
        self.mtu = mtu;
        self
    }

    /// Sets the name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }
}

/// A text that names no port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParsePortError {
    /// No known kind of port.
    #[error("`{0}` is not a port: use switch:PATH, udp:LOCAL:PORT/PEER:PORT, tap:NAME, loopback or none")]
    Kind(String),
    /// The path of a switch is missing.
    #[error("`switch:` lacks the path of the switch's socket, as in switch:/run/user/1000/verbena.sock")]
    NoPath,
    /// Not two socket addresses.
    #[error(
        "`{0}` is not a UDP port: write udp:LOCAL:PORT/PEER:PORT with numeric addresses, as in udp:0.0.0.0:5000/192.0.2.2:5000"
    )]
    Udp(String),
    /// An IPv4 and an IPv6 address.
    #[error("`{0}` mixes IPv4 and IPv6: both addresses must be of one kind")]
    UdpFamily(String),
    /// No name an interface can have.
    #[error("`{0}` is not a name of a network interface: 1 to 15 bytes without spaces and slashes")]
    TapName(String),
}

impl FromStr for Backend {
    type Err = ParsePortError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "loopback" => Ok(Self::Loopback),
            None if text == "none" => Ok(Self::Unplugged),
            Some(("switch", "")) => Err(ParsePortError::NoPath),
            Some(("switch", path)) => Ok(Self::Switch(path.into())),
            Some(("udp", addresses)) => parse_udp(addresses),
            Some(("tap", name)) if is_interface_name(name) => Ok(Self::Tap(name.into())),
            Some(("tap", name)) => Err(ParsePortError::TapName(name.into())),
            _ => Err(ParsePortError::Kind(text.into())),
        }
    }
}

fn parse_udp(addresses: &str) -> Result<Backend, ParsePortError> {
    let bad = || ParsePortError::Udp(addresses.into());
    let (local, peer) = addresses.split_once('/').ok_or_else(bad)?;
    let local: SocketAddr = local.parse().map_err(|_| bad())?;
    let peer: SocketAddr = peer.parse().map_err(|_| bad())?;
    if peer.port() == 0 || peer.ip().is_unspecified() {
        return Err(bad());
    }
    if local.is_ipv4() != peer.is_ipv4() {
        return Err(ParsePortError::UdpFamily(addresses.into()));
    }
    Ok(Backend::Udp { local, peer })
}

/// The kernel's rule (`dev_valid_name`), less the names no tool can handle.
fn is_interface_name(name: &str) -> bool {
    let valid = |c: char| c.is_ascii_graphic() && c != '/' && c != ':' && c != '%';
    (1..16).contains(&name.len()) && name != "." && name != ".." && name.chars().all(valid)
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(path) => write!(f, "switch:{}", path.display()),
            Self::Udp { local, peer } => write!(f, "udp:{local}/{peer}"),
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Loopback => f.write_str("loopback"),
            Self::Unplugged => f.write_str("none"),
        }
    }
}

impl From<Backend> for PortSpec {
    fn from(backend: Backend) -> Self {
        Self { backend, mtu: None, name: String::new() }
    }
}

impl FromStr for PortSpec {
    type Err = ParsePortError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Backend>().map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn documented_texts_are_understood() {
        let path = Backend::Switch("/run/x.sock".into());
        assert_eq!("switch:/run/x.sock".parse(), Ok(path));
        let (local, peer) = ("[::1]:5000".parse().unwrap(), "[fd00::2]:6000".parse().unwrap());
        assert_eq!("udp:[::1]:5000/[fd00::2]:6000".parse(), Ok(Backend::Udp { local, peer }));
        assert_eq!("tap:tap0".parse(), Ok(Backend::Tap("tap0".into())));
        assert_eq!("loopback".parse(), Ok(Backend::Loopback));
        assert_eq!("none".parse(), Ok(Backend::Unplugged));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<PortSpec>().unwrap_err();
        assert_eq!(error("bridge0"), ParsePortError::Kind("bridge0".into()));
        assert_eq!(error("loopback:x"), ParsePortError::Kind("loopback:x".into()));
        assert_eq!(error("switch:"), ParsePortError::NoPath);
        assert_eq!(error("udp:0.0.0.0:1"), ParsePortError::Udp("0.0.0.0:1".into()));
        let wildcard = "0.0.0.0:1/0.0.0.0:2";
        assert_eq!(error(&format!("udp:{wildcard}")), ParsePortError::Udp(wildcard.into()));
        let mixed = "127.0.0.1:1/[::1]:2";
        assert_eq!(error(&format!("udp:{mixed}")), ParsePortError::UdpFamily(mixed.into()));
        for name in ["", "..", "a b", "a/b", "sixteen-bytes-xx"] {
            assert_eq!(error(&format!("tap:{name}")), ParsePortError::TapName(name.into()));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in "(switch:|udp:|tap:)?.{0,60}") {
            let _ = text.parse::<PortSpec>();
        }

        #[test]
        fn what_is_printed_is_understood(a: [u8; 4], b: [u8; 4], local: u16, peer in 1_u16..) {
            prop_assume!(b != [0; 4]);
            let backend = Backend::Udp { local: (a, local).into(), peer: (b, peer).into() };
            prop_assert_eq!(backend.to_string().parse(), Ok(backend));
        }
    }
}
