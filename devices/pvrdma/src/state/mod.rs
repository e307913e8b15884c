//! The state of the device: everything behind its lock.

mod core;
mod irq;
mod objects;
mod region;
mod table;

pub(crate) use self::core::{Core, Phase};
pub(crate) use irq::Irq;
pub(crate) use objects::{Arm, Context, Cq, KERNEL, Mr, Objects, Pd, Qp, Srq, owner};
pub(crate) use region::{Region, ring_shape};
pub(crate) use table::Table;
