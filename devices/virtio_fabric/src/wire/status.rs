//! Statuses of completions.

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// How a command ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Status {
            $($(#[$doc])* $name = $value,)*
        }

        impl Status {
            /// Every status.
            pub const ALL: &[Status] = &[$(Status::$name,)*];
        }

        /// A status that is not known means [`Status::Internal`]: whatever it was, the command failed.
        impl From<Status> for u16 {
            fn from(status: Status) -> u16 {
                status as u16
            }
        }

        impl From<u16> for Status {
            fn from(value: u16) -> Self {
                match value {
                    $($value => Status::$name,)*
                    _ => Status::Internal,
                }
            }
        }
    };
}

statuses! {
    /// Done.
    Success = 0x0000,
    /// ENOCMD: unknown, or a feature that was not agreed on.
    NoCommand = 0x0001,
    /// ECMDQUOT: more commands in flight than the window allows.
    CommandQuota = 0x0002,
    /// ENOTGT: no such target name.
    NoTarget = 0x1001,
    /// ENODEV: no device instance could be made.
    NoDevice = 0x1002,
    /// EACLREJECTED: this initiator may not.
    AccessRejected = 0x1003,
    /// EBADDEV: no such device instance.
    BadDevice = 0x1010,
    /// EBADVQN: a name that is malformed or not the one of the control queue.
    BadName = 0x1011,
    /// EQUEUEQUOT: no virtqueue of this number.
    QueueQuota = 0x1020,
    /// EQUEUEBUSY: the virtqueue has a connection.
    QueueBusy = 0x1021,
    /// EQSIZEQUOT: the virtqueue is not that large.
    QueueSizeQuota = 0x1022,
    /// EFEATURE: no such transport feature.
    Feature = 0x2000,
    /// ESTATUS: not a device status that can be set now.
    DeviceStatus = 0x2010,
    /// EDEVFEATURE: no such device feature.
    DeviceFeature = 0x2020,
    /// ECONFOFF: beyond the configuration space.
    ConfigOffset = 0x2030,
    /// ECONFBYTES: a width that is not served.
    ConfigBytes = 0x2031,
    /// EOUTVQBUF: readable bytes could not be fetched.
    OutBuffer = 0x20f0,
    /// EINVQBUF: writable bytes could not be stored.
    InBuffer = 0x20f1,
    /// EXPROTO: the peer broke the protocol.
    Protocol = 0x8001,
    /// EXVERSION: no common version.
    Version = 0x8002,
    /// EXINLINE: more inline bytes than agreed.
    Inline = 0x8003,
    /// EXDESC: a bad descriptor or too many.
    Descriptor = 0x8004,
    /// EXXFER: more bytes than a command may move.
    Transfer = 0x8005,
    /// EXKEY: remote access failed.
    Key = 0x8006,
    /// EXBUSY: try again later.
    Busy = 0x8007,
    /// EXNOMEM: no memory.
    NoMemory = 0x8008,
    /// EXABORTED: cancelled by an abort.
    Aborted = 0x8009,
    /// EXRESET: cancelled by a reset.
    Reset = 0x800a,
    /// EXSTALE: the session or its epoch is gone.
    Stale = 0x800b,
    /// EXAUTH: authentication failed or is missing.
    Auth = 0x800c,
    /// EXTLS: not without TLS.
    Tls = 0x800d,
    /// EXREDIRECT: go where the redirect says.
    Redirect = 0x800e,
    /// EXDIGEST: a checksum is wrong.
    Digest = 0x800f,
    /// EXSTATE: not legal in this state.
    State = 0x8010,
    /// EXSLOT: not a slot that can be used.
    Slot = 0x8011,
    /// EXINTERNAL: an error of the target, and every status that is not known.
    Internal = 0x8012,
    /// EXLOST: the command was executed before the connection was lost, its data is not kept and it cannot be repeated.
    Lost = 0x8013,
}
