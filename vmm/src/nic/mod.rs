//! NIC slots: vmxnet3 as function 0, and beside it as function 1 the RDMA device that belongs to it.
//!
//! Both functions, their link and their timers are served by one I/O thread, so the data path takes no lock that another
//! thread waits for; vCPU threads come in for registers and commands only.

mod announce;
mod events;
mod inbox;
mod polling;
mod port;
mod provider;

use std::sync::Arc;

use device_model::doorbell::Bell;
use device_model::irq::Interrupts;
use pci::Device;
use pvrdma::{Bells, Parts, Pvrdma};
use vmxnet3::Vmxnet3;

pub use self::announce::announce;
use self::events::{NicEvents, RdmaEvents};
use self::polling::Permit;
pub use self::polling::PollingThreads;
pub use self::port::{NicPort, open_ports};
use self::provider::Made;
use crate::error::{Error, Result};
use crate::inspect::SlotView;
use crate::io::{EventBell, IoThread};
use crate::machine::{FunctionKit, SlotBuilder};

/// Eventfds that the doorbells of an RDMA function's objects share. More of them mean fewer rings to look at when one
/// rings; eight keep a handful of busy queues apart.
const DOORBELL_GROUPS: usize = 8;

/// Adds the slot that is plugged into `port`, and its thread. A `bare` guest has no driver that brings the network interface
/// up: its RDMA device does without.
///
/// # Errors
///
/// When the link cannot carry RDMA, or the host has no descriptors or threads left.
pub fn add_slot(slots: &mut SlotBuilder, port: &NicPort, bare: bool) -> Result<()> {
    let kit = slots.kit(Some(vmxnet3::MSIX));
    let nic_bell = bell(port)?;
    let nic = Arc::new(Vmxnet3::new(
        vmxnet3::Config::new(port.mac),
        slots.ram(),
        port.nic_link.clone(),
        interrupts(&kit)?,
        kit.doorbells.clone(),
        nic_bell.clone(),
    ));
    let mut functions: Vec<(Arc<dyn Device>, FunctionKit)> = vec![(nic.clone(), kit)];

    let mut rdma = None;
    if port.rdma {
        let kit = slots.kit(Some(pvrdma::MSIX));
        let interface = nic.clone();
        let interface_up = Box::new(move || bare || interface.is_active());
        let events = make_rdma(slots, port, &kit, interface_up)?;
        functions.push((events.device.clone(), kit));
        rdma = Some(events);
    }

    let address = slots.add_slot(functions)?;
    slots.show(SlotView {
        name: port.name.clone(),
        address,
        link: port.backend.clone(),
        mtu: port.link.mtu(),
        nic: nic.clone(),
        rdma: rdma.as_ref().map(|rdma| rdma.device.clone()),
    });
    let events = NicEvents::new(slots.clock(), port.link.clone(), nic, nic_bell, rdma)
        .map_err(|e| Error::Failure(format!("Failed to make the timer of {}: {e}", port.name)))?;
    slots.add_thread(IoThread::spawn(&port.name, vec![Box::new(events)])?);
    Ok(())
}

fn make_rdma(
    slots: &SlotBuilder,
    port: &NicPort,
    kit: &FunctionKit,
    interface_up: Box<dyn Fn() -> bool + Send + Sync>,
) -> Result<RdmaEvents> {
    let work = bell(port)?;
    let groups = (0..DOORBELL_GROUPS).map(|_| bell(port)).collect::<Result<Vec<_>>>()?;
    let bells = Bells {
        work: work.clone(),
        groups: groups.iter().map(|bell| Arc::clone(bell) as Arc<dyn Bell>).collect(),
        unread: bell(port)?,
    };
    let Made { provider, wakeup, channels } = provider::make(slots, port)?;
    let clock = slots.clock();
    let parts = Parts {
        provider,
        ram: slots.ram(),
        interrupts: interrupts(kit)?,
        doorbells: kit.doorbells.clone(),
        bells,
        clock: Box::new(move || clock.now()),
        interface_up,
    };
    let config = pvrdma::Config { link_up: port.link.is_up(), ..pvrdma::Config::new(port.mac) };
    let device = Pvrdma::new(config, parts)
        .map_err(|e| Error::Failure(format!("Failed to make the RDMA device of {}: {e}", port.name)))?;
    let permit = Permit::new(port.polling, slots.polling_threads());
    Ok(RdmaEvents { device: Arc::new(device), work, groups, wakeup, channels, permit, polls: false })
}

fn bell(port: &NicPort) -> Result<Arc<EventBell>> {
    EventBell::new().map(Arc::new).map_err(|e| Error::io(format!("make the bells of {}", port.name), e))
}

fn interrupts(kit: &FunctionKit) -> Result<Arc<dyn Interrupts>> {
    match &kit.msix {
        Some(msix) => Ok(msix.clone()),
        None => Err(Error::Failure("A function with MSI-X was given no interrupts".to_owned())),
    }
}
