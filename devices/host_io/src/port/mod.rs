//! Ports by name: what a user types, and the link it stands for.
//!
//! | text | link |
//! |---|---|
//! | `switch:PATH` | a port of the switch that listens at the UNIX socket PATH ([`crate::switch`]) |
//! | `udp:LOCAL:PORT/PEER:PORT` | frames in UDP datagrams to one peer ([`crate::udp`]); IPv6 addresses in brackets |
//! | `tap:NAME` | a tap interface of the host ([`crate::tap`]) |
//! | `loopback` | up, with nobody there: only frames to oneself come back |
//! | `none` | an unplugged cable: the link is down |

mod spec;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use device_model::net::Link;

use crate::capture::{Capture, CaptureFile};
use crate::guard::{AddressPolicy, Guard};
use crate::impair::{Impair, Impairment};
use crate::loopback::{Loopback, Unplugged};
use crate::switch::{ConnectError, SwitchLink, SwitchLinkOptions};
use crate::tap::{TapError, TapLink};
use crate::udp::UdpLink;

pub use spec::{Backend, MIN_MTU, ParsePortError, PortSpec};

/// MTU of a port with nobody at the other end.
const DEFAULT_MTU: u16 = 9000;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The MTU is too small for IPv6 and RoCE.
    #[error("Port MTU {0} is too small: it must be at least {MIN_MTU}")]
    SmallMtu(u16),
    /// The MTU leaves no room for the encapsulation in a datagram.
    #[error("Port MTU {0} is too large for a UDP port: it must be at most {max}", max = crate::udp::MAX_MTU)]
    LargeMtu(u16),
    /// No port of a switch.
    #[error("Cannot connect the port to its switch")]
    Switch(#[from] ConnectError),
    /// No socket.
    #[error("Cannot open UDP port {local}: is the address one of this host's, and the port free?")]
    Udp {
        /// Address to listen at.
        local: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// No interface.
    #[error("Cannot use the tap interface")]
    Tap(#[from] TapError),
    /// No descriptor left for the port.
    #[error("Cannot open the port")]
    Io(#[source] io::Error),
}

/// Opens a port.
///
/// # Errors
///
/// [`PortError`] and its sources name the cause and the remedy.
pub fn open(spec: &PortSpec) -> Result<Arc<dyn Link>, PortError> {
    if let Some(mtu) = spec.mtu.filter(|&mtu| mtu < MIN_MTU) {
        return Err(PortError::SmallMtu(mtu));
    }
    Ok(match &spec.backend {
        Backend::Switch(path) => {
            let options = SwitchLinkOptions { name: spec.name.clone(), mtu: spec.mtu };
            Arc::new(SwitchLink::connect(path, &options)?)
        }
        Backend::Udp { local, peer } => Arc::new(UdpLink::open(*local, *peer, spec.mtu)?),
        Backend::Tap(name) => Arc::new(TapLink::open(name, spec.mtu)?),
        Backend::Loopback => Arc::new(Loopback::new(spec.mtu.unwrap_or(DEFAULT_MTU)).map_err(PortError::Io)?),
        Backend::Unplugged => Arc::new(Unplugged::new(spec.mtu.unwrap_or(DEFAULT_MTU))),
    })
}

/// What a port does beside carrying frames.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Ties what is sent to these addresses.
    pub policy: Option<AddressPolicy>,
    /// Makes the network bad in both directions.
    pub impairment: Option<Impairment>,
    /// Records what the virtual machine sends and receives.
    pub capture: Option<Arc<CaptureFile>>,
}

/// An opened port with its options in place.
#[derive(Clone)]
pub struct Port {
    /// What devices use.
    pub link: Arc<dyn Link>,
    /// For its counters, if the port has a policy.
    pub guard: Option<Arc<Guard<Arc<dyn Link>>>>,
    /// For its counters, if the port is impaired.
    pub impair: Option<Arc<Impair<Arc<dyn Link>>>>,
}

/// Opens a port and puts `options` in front of it: the guard next to the virtual machine, then the capture, then the
/// impairment. So the capture holds what the machine was allowed to send and what reached it.
///
/// # Errors
///
/// See [`open`].
pub fn open_with(spec: &PortSpec, options: Options) -> Result<Port, PortError> {
    let mut port = Port { link: open(spec)?, guard: None, impair: None };
    if let Some(impairment) = options.impairment {
        let impair = Arc::new(Impair::new(port.link, impairment).map_err(PortError::Io)?);
        port.link = impair.clone();
        port.impair = Some(impair);
    }
    if let Some(file) = options.capture {
        port.link = Arc::new(Capture::new(port.link, file, &spec.name, &spec.backend.to_string()));
    }
    if let Some(policy) = options.policy {
        let guard = Arc::new(Guard::new(port.link, policy));
        port.link = guard.clone();
        port.guard = Some(guard);
    }
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{frame, mac, recv, send};

    #[test]
    fn mtu_below_that_of_ipv6_is_refused() {
        let spec = PortSpec::from(Backend::Loopback).with_mtu(Some(1279));
        assert!(matches!(open(&spec), Err(PortError::SmallMtu(1279))));
        assert_eq!(open(&spec.with_mtu(Some(1280))).map(|link| link.mtu()).ok(), Some(1280));
    }

    #[test]
    fn absent_switch_is_an_error_that_says_how_to_start_one() {
        let dir = tempfile::tempdir().unwrap();
        let spec = PortSpec::from(Backend::Switch(dir.path().join("x.sock")));
        let Err(PortError::Switch(error)) = open(&spec) else { panic!("there is no switch") };
        assert!(error.to_string().contains("`verbena switch --socket "), "{error}");
    }

    #[test]
    fn options_are_in_front_of_the_port_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(CaptureFile::create(&dir.path().join("x.pcapng"), None).unwrap());
        let options = Options {
            policy: Some(AddressPolicy::mac_only(mac(1))),
            impairment: Some("duplicate:100%".parse().unwrap()),
            capture: Some(Arc::clone(&file)),
        };
        let port = open_with(&Backend::Loopback.into(), options).unwrap();
        send(&port.link, &frame(mac(1), mac(1), 60, 1));
        // Twice on the way out, and each of the two twice on the way back.
        (0..4).for_each(|_| assert_eq!(recv(&port.link), frame(mac(1), mac(1), 60, 1)));
        send(&port.link, &frame(mac(2), mac(2), 60, 1));
        assert_eq!(file.counters().frames, 5);
        assert_eq!(port.guard.unwrap().counters().iter().map(|(_, n)| n).sum::<u64>(), 1);
        assert_eq!(port.impair.unwrap().counters().0.duplicated, 1);
    }
}
