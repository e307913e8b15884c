//! The port, and objects that come and go.

use alloc::format;

use pvrdma_driver::Driver;

use crate::node::{Node, cannot};
use crate::{Machine, Outcome};

/// `IB_PORT_ACTIVE`
const ACTIVE: u32 = 4;

/// The port says what a driver needs to know.
pub fn port_is_described<M: Machine>(driver: &Driver<M>) -> Outcome {
    let port = driver.query_port().map_err(cannot("query the port"))?;
    let (state, mtu, max_mtu) = (port.state, port.active_mtu, port.max_mtu);
    if state != ACTIVE {
        return Err(format!("The port is in state {state}"));
    }
    if !(1..=max_mtu).contains(&mtu) || port.gid_tbl_len == 0 || port.pkey_tbl_len == 0 {
        return Err(format!("The port has path MTU {mtu} of {max_mtu}, or an empty table"));
    }
    Ok(())
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
