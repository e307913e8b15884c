//! The port, and objects that come and go.

use alloc::format;

use pvrdma_driver::Driver;

use crate::node::{Node, cannot};
use crate::{Machine, Outcome};

/// `IB_PORT_ACTIVE`
const ACTIVE: u32 = 4;

/// The port is active once the device is.
pub fn port_is_active<M: Machine>(driver: &Driver<M>) -> Outcome {
    let port = driver.query_port().map_err(cannot("query the port"))?;
    let state = port.state;
    if state == ACTIVE { Ok(()) } else { Err(format!("The port is in state {state}")) }
}

/// A process can be made and unmade over and over, which it could not if anything were kept.
pub fn come_and_go<M: Machine>(driver: &Driver<M>) -> Outcome {
    for _ in 0..50 {
        let node = Node::new(driver)?;
        let pair = node.pair()?;
        node.close(pair)?;
    }
    Ok(())
}
