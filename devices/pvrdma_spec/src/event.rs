//! Entries of the two rings the device writes: asynchronous events and completion notifications.

abi! {
    /// `struct pvrdma_eqe`: an asynchronous event.
    Eqe [8] {
        /// [`EventType`].
        kind: u32 = 0,
        /// Handle of the object, or the port number.
        info: u32 = 4,
    }
}

abi! {
    /// `struct pvrdma_cqne`: an armed completion queue has an entry.
    Cqne [4] {
        /// Handle of the completion queue.
        info: u32 = 0,
    }
}

/// `enum pvrdma_eqe_type`, those that this device raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventType {
    /// A completion queue failed.
    CqErr = 0,
    /// A queue pair failed.
    QpFatal = 1,
    /// An invalid request arrived at a queue pair.
    QpReqErr = 2,
    /// A request without the right arrived at a queue pair.
    QpAccessErr = 3,
    /// The first message arrived at a queue pair.
    CommEst = 4,
    /// A send queue is drained.
    SqDrained = 5,
    /// The device is gone.
    DeviceFatal = 8,
    /// The port came up.
    PortActive = 9,
    /// The port went down.
    PortErr = 10,
    /// A shared receive queue failed.
    SrqErr = 14,
    /// A shared receive queue fell below its limit.
    SrqLimitReached = 15,
    /// A queue pair in error took its last shared receive.
    QpLastWqeReached = 16,
}

impl EventType {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::CqErr,
        Self::QpFatal,
        Self::QpReqErr,
        Self::QpAccessErr,
        Self::CommEst,
        Self::SqDrained,
        Self::DeviceFatal,
        Self::PortActive,
        Self::PortErr,
        Self::SrqErr,
        Self::SrqLimitReached,
        Self::QpLastWqeReached,
    ];
}
