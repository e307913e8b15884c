//! What carries verbs out for guests of the user's.

use std::str::FromStr;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::rdma::HostRdma;
use crate::setup::Way;

/// The engine inside the monitor, or an RDMA device of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Provider {
    /// The engine.
    #[default]
    Engine,
    /// The device of that name; that of the lab when none is given.
    Host(Option<String>),
}

impl FromStr for Provider {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "engine" => Ok(Self::Engine),
            None if text == "host" => Ok(Self::Host(None)),
            Some(("host", name)) if !name.is_empty() => Ok(Self::Host(Some(name.to_owned()))),
            _ => Err("it is engine, host or host:DEVICE".to_owned()),
        }
    }
}

impl Provider {
    /// How `verbena run --net` names its kind.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Host(_) => "host",
        }
    }

    /// Makes sure that there can be such a device where guests run.
    ///
    /// # Errors
    ///
    /// What to give in its place.
    pub fn check(&self, way: Way) -> Result<()> {
        match (self, way) {
            (Self::Host(Some(_)), Way::Lab) => {
                bail!("Guests run inside the lab, which has an RDMA device of its own: --provider host")
            }
            (Self::Host(None), Way::Direct) => bail!(
                "Which RDMA device of this machine? `rdma link` shows them: --provider host:DEVICE (`rdma link add rxe0 \
                 type rxe netdev eth0` makes one)"
            ),
            _ => Ok(()),
        }
    }

    /// The device that guests are mirrored onto; that of the lab is made.
    ///
    /// # Errors
    ///
    /// As [`Provider::check`], and when the device cannot be made.
    pub fn device(&self, way: Way) -> Result<Option<String>> {
        self.check(way)?;
        Ok(match self {
            Self::Engine => None,
            Self::Host(Some(name)) => Some(name.clone()),
            Self::Host(None) => Some(HostRdma::make()?.name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_read_and_go_where_there_is_a_device() {
        assert_eq!("engine".parse(), Ok(Provider::Engine));
        let (lab, named) = ("host".parse::<Provider>().unwrap(), "host:rxe0".parse::<Provider>().unwrap());
        assert_eq!(named, Provider::Host(Some("rxe0".to_owned())));
        for text in ["", "host:", "rxe0", "engine:rxe0"] {
            assert!(text.parse::<Provider>().is_err(), "{text}");
        }
        assert!(lab.check(Way::Lab).is_ok() && named.check(Way::Direct).is_ok());
        assert!(lab.check(Way::Direct).is_err() && named.check(Way::Lab).is_err());
    }
}
