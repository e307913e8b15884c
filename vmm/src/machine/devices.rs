//! The PCI devices of a machine, in the order of their slots.
//!
//! NICs come first, so that their names in the guest do not depend on what else there is.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use device_model::doorbell::Bell;
use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use virtio::block::BlockBackend;
use virtio::{Block, Rng, VirtioDevice, VirtioPci, Wiring, msix_spec};

use super::build::HostSide;
use super::slots::SlotBuilder;
use crate::config::VmConfig;
use crate::error::{Error, Result};
use crate::fabric::RemoteRunner;
use crate::io::{EventBell, IoThread, Subscriber};
use crate::nic;

/// Queues of a disk.
const DISK_QUEUES: u16 = 1;

/// Adds every device that `config` asks for.
pub(super) fn add_all(slots: &mut SlotBuilder, config: &VmConfig, host: &HostSide) -> Result<()> {
    for port in &host.ports {
        nic::add_slot(slots, port, config.is_bare())?;
    }
    for (index, image) in host.disks.iter().enumerate() {
        let backend: Arc<dyn BlockBackend> = image.clone();
        let block = Block::new(backend, DISK_QUEUES, &format!("disk{index}"));
        add_virtio(slots, &format!("disk{index}"), Arc::new(block), |_| None)?;
    }
    for (index, remote) in host.fabric_disks.iter().enumerate() {
        // What a machine before this one has left there.
        remote.quiesce();
        let runner = |device: &Arc<VirtioPci>| -> Option<Subscriber> {
            Some(Box::new(RemoteRunner { remote: Arc::clone(remote), device: Arc::clone(device) }))
        };
        add_virtio(slots, &format!("fabric{index}"), Arc::clone(remote) as _, runner)?;
    }
    if config.rng {
        add_virtio(slots, "rng", Arc::new(Rng), |_| None)?;
    }
    Ok(())
}

/// Puts a virtio device into a slot of its own, with a thread of its own that serves its queues and `other`.
fn add_virtio(
    slots: &mut SlotBuilder,
    name: &str,
    device: Arc<dyn VirtioDevice>,
    other: impl FnOnce(&Arc<VirtioPci>) -> Option<Subscriber>,
) -> Result<()> {
    let failed = |why: &dyn std::fmt::Display| Error::Failure(format!("Failed to make {name}: {why}"));
    let queues = u16::try_from(device.queue_sizes().len()).map_err(|e| failed(&e))?;
    let kit = slots.kit(Some(msix_spec(queues)));
    let interrupts = kit.msix.clone().ok_or_else(|| failed(&"it has no interrupts"))?;
    let bells = (0..queues)
        .map(|_| EventBell::new().map(Arc::new))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(|e| failed(&e))?;
    let wiring = Wiring {
        ram: slots.ram_regions(),
        interrupts,
        doorbells: kit.doorbells.clone(),
        bells: bells.iter().map(|bell| Arc::clone(bell) as Arc<dyn Bell>).collect(),
    };
    let device = Arc::new(VirtioPci::new(device, wiring).map_err(|e| failed(&e))?);
    let mut subscribers: Vec<Subscriber> = vec![Box::new(QueueRunner { device: Arc::clone(&device), bells })];
    subscribers.extend(other(&device));
    slots.add_slot(vec![(device, kit)])?;
    slots.add_thread(IoThread::spawn(name, subscribers)?);
    Ok(())
}

/// Serves the queues of a virtio device when their bells ring.
struct QueueRunner {
    device: Arc<VirtioPci>,
    bells: Vec<Arc<EventBell>>,
}

impl MutEventSubscriber for QueueRunner {
    fn init(&mut self, ops: &mut EventOps) {
        for (queue, bell) in (0..).zip(&self.bells) {
            if let Err(error) = ops.add(Events::with_data_raw(bell.as_raw_fd(), queue, EventSet::IN)) {
                tracing::error!(%error, "Failed to watch a virtio queue");
            }
        }
    }

    fn process(&mut self, event: Events, _: &mut EventOps) {
        let queue = event.data() as u16;
        if let Some(bell) = self.bells.get(usize::from(queue)) {
            // Cleared before the queue is looked at, so that what comes meanwhile rings again.
            bell.clear();
            self.device.process_queue(queue);
        }
    }
}
