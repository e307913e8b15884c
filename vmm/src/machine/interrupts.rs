//! Interrupt routing: lines of the in-kernel controllers, and messages of PCI functions through irqfds.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use device_model::doorbell::Bell;
use kvm_bindings::{
    KVM_IRQ_ROUTING_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER,
    KVM_IRQCHIP_PIC_SLAVE, KvmIrqRouting, kvm_irq_routing_entry,
};
use pci::{MsiMessage, MsiRouter};

use crate::error::{Error, Result};
use crate::io::EventBell;
use crate::kvm::{VmWithRam, event_fd};

/// Pins of the I/O APIC; message routes come after them.
const IO_APIC_PINS: u32 = 24;
/// Interrupt lines of the two PICs.
const PIC_LINES: u32 = 16;
/// Line of the programmable interval timer.
const TIMER_LINE: u32 = 0;
/// I/O APIC pin of the timer, and the PIC line of the cascade.
pub const TIMER_PIN: u32 = 2;
/// Routes KVM takes on x86.
const MAX_ROUTES: usize = 4096;

/// The routing table of one machine.
pub struct InterruptRouter {
    vm: Arc<VmWithRam>,
    /// The whole table: fixed lines, then messages. KVM takes it only as a whole.
    routes: Mutex<Routes>,
}

struct Routes {
    table: Vec<kvm_irq_routing_entry>,
    next_gsi: u32,
}

impl InterruptRouter {
    /// Routes the lines as PCs do: line n to PIC input n and I/O APIC pin n, except that the timer's is pin 2.
    ///
    /// # Errors
    ///
    /// When KVM refuses the table.
    pub fn new(vm: Arc<VmWithRam>) -> Result<Arc<Self>> {
        let table = line_routes();
        set_routes(&vm, &table)?;
        let routes = Mutex::new(Routes { table, next_gsi: IO_APIC_PINS });
        Ok(Arc::new(Self { vm, routes }))
    }

    /// An edge-triggered line: each ring of the bell is one interrupt.
    ///
    /// # Errors
    ///
    /// When KVM refuses it.
    pub fn edge_line(&self, line: u32) -> Result<EventBell> {
        self.attach(line)
    }

    /// A message router for a function with `vectors` vectors.
    pub fn messages(self: &Arc<Self>, vectors: u16) -> Arc<KvmMessages> {
        let vectors = (0..vectors).map(|_| Vector::default()).collect();
        Arc::new(KvmMessages { router: Arc::clone(self), vectors })
    }

    fn attach(&self, gsi: u32) -> Result<EventBell> {
        let failed = |e| Error::io(format!("connect interrupt {gsi}"), e);
        let bell = EventBell::new().map_err(failed)?;
        let fd = event_fd(bell.as_fd()).map_err(failed)?;
        self.vm.fd().register_irqfd(&fd, gsi).map_err(|e| Error::kvm("connect an interrupt", e))?;
        Ok(bell)
    }

    /// Gives `message` a route of its own and returns its number.
    fn add_message(&self, message: MsiMessage) -> Result<u32> {
        let mut routes = self.lock();
        if routes.table.len() >= MAX_ROUTES {
            return Err(Error::Resource("KVM has no interrupt route left".to_owned()));
        }
        let gsi = routes.next_gsi;
        routes.table.push(message_route(gsi, message));
        if let Err(error) = set_routes(&self.vm, &routes.table) {
            routes.table.pop();
            return Err(error);
        }
        routes.next_gsi += 1;
        Ok(gsi)
    }

    fn change_message(&self, gsi: u32, message: MsiMessage) -> Result<()> {
        let mut routes = self.lock();
        if let Some(route) = routes.table.iter_mut().find(|route| route.gsi == gsi && is_message(route)) {
            *route = message_route(gsi, message);
        }
        set_routes(&self.vm, &routes.table)
    }

    fn lock(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A vector's route and eventfd, both made when the guest first programs it.
#[derive(Default)]
struct Vector {
    route: Mutex<Option<Route>>,
    /// Connected to the route for good, so that firing need not ask which message it is.
    bell: OnceLock<EventBell>,
}

struct Route {
    gsi: u32,
    message: MsiMessage,
}

/// The messages of one function. Firing takes no lock: I/O threads do it while a vCPU sets a route, which KVM takes its
/// time for.
pub struct KvmMessages {
    router: Arc<InterruptRouter>,
    vectors: Vec<Vector>,
}

impl Vector {
    fn program(&self, router: &InterruptRouter, message: MsiMessage) -> Result<()> {
        let mut route = self.route.lock().unwrap_or_else(PoisonError::into_inner);
        let gsi = match &mut *route {
            Some(route) => {
                if route.message != message {
                    router.change_message(route.gsi, message)?;
                    route.message = message;
                }
                route.gsi
            }
            None => route.insert(Route { gsi: router.add_message(message)?, message }).gsi,
        };
        if self.bell.get().is_none() {
            // The route's lock is held, so nobody else sets it.
            let _ = self.bell.set(router.attach(gsi)?);
        }
        Ok(())
    }
}

impl MsiRouter for KvmMessages {
    fn set(&self, vector: u16, message: MsiMessage) {
        if let Some(slot) = self.vectors.get(usize::from(vector))
            && let Err(error) = slot.program(&self.router, message)
        {
            device_model::guest_warn!(
                vector,
                error = error.chain(),
                "Failed to route an interrupt: it is lost"
            );
        }
    }

    fn fire(&self, vector: u16) {
        if let Some(bell) = self.vectors.get(usize::from(vector)).and_then(|vector| vector.bell.get()) {
            bell.ring();
        }
    }
}

fn line_routes() -> Vec<kvm_irq_routing_entry> {
    let pic = (0..PIC_LINES).filter(|line| *line != TIMER_PIN).map(|line| {
        let chip = if line < 8 { KVM_IRQCHIP_PIC_MASTER } else { KVM_IRQCHIP_PIC_SLAVE };
        line_route(line, chip, line % 8)
    });
    let io_apic = (0..IO_APIC_PINS)
        .filter(|line| *line != TIMER_PIN)
        .map(|line| line_route(line, KVM_IRQCHIP_IOAPIC, if line == TIMER_LINE { TIMER_PIN } else { line }));
    pic.chain(io_apic).collect()
}

fn line_route(gsi: u32, chip: u32, pin: u32) -> kvm_irq_routing_entry {
    let mut entry = kvm_irq_routing_entry { gsi, type_: KVM_IRQ_ROUTING_IRQCHIP, ..Default::default() };
    entry.u.irqchip.irqchip = chip;
    entry.u.irqchip.pin = pin;
    entry
}

fn message_route(gsi: u32, message: MsiMessage) -> kvm_irq_routing_entry {
    let mut entry = kvm_irq_routing_entry { gsi, type_: KVM_IRQ_ROUTING_MSI, ..Default::default() };
    let [low, high] = [message.address as u32, (message.address >> 32) as u32];
    entry.u.msi.address_lo = low;
    entry.u.msi.address_hi = high;
    entry.u.msi.data = message.data;
    entry
}

fn is_message(entry: &kvm_irq_routing_entry) -> bool {
    entry.type_ == KVM_IRQ_ROUTING_MSI
}

fn set_routes(vm: &VmWithRam, table: &[kvm_irq_routing_entry]) -> Result<()> {
    let routing = KvmIrqRouting::from_entries(table)
        .map_err(|e| Error::Failure(format!("Failed to lay out the interrupt routes: {e:?}")))?;
    vm.fd().set_gsi_routing(&routing).map_err(|e| Error::kvm("set interrupt routes", e))
}

#[cfg(test)]
mod tests {
    use bare_abi::{APIC_EOI, MSI_ADDRESS, PORT_HALT};
    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::machine::bare::test_handler;
    use crate::machine::testing::asm::Asm;
    use crate::machine::testing::{Step, TinyGuest};

    /// Where handlers are put.
    const HANDLERS: u64 = 0x20_0000;
    const PORT: u16 = 0x80;

    fn handler(guest: &TinyGuest, vector: u8, mark: u8) {
        let address = HANDLERS + u64::from(vector) * 256;
        let code = Asm::new().out8(PORT, mark).store32(APIC_EOI, 0).interrupt_return().code();
        guest.vm.ram().write_slice(&code, GuestAddress(address)).unwrap();
        test_handler(guest.vm.ram(), vector, address);
    }

    #[test]
    fn a_fired_vector_wakes_the_cpu_with_the_message_set_last() {
        let code = Asm::new().out8(PORT_HALT, 0).out8(PORT_HALT, 0).exit(0).code();
        let Some(mut guest) = TinyGuest::new(&code) else { return };
        handler(&guest, 0x40, b'a');
        handler(&guest, 0x41, b'b');
        let messages = guest.interrupts.messages(2);
        let message = |data| MsiMessage { address: MSI_ADDRESS, data };
        messages.fire(1);
        messages.set(1, message(0x40));
        assert_eq!(guest.step(), Step::Halt, "firing without a message does nothing");
        messages.fire(1);
        assert_eq!(guest.step(), Step::Out(PORT, vec![b'a']));
        messages.set(1, message(0x41));
        messages.set(9, message(0x40));
        assert_eq!(guest.step(), Step::Halt);
        messages.fire(9);
        messages.fire(1);
        assert_eq!(guest.step(), Step::Out(PORT, vec![b'b']));
        assert_eq!(guest.step(), Step::Exit(0));
    }
}
