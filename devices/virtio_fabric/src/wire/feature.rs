//! Transport features.

bitflags::bitflags! {
    /// Transport features, as in the window 0 of Get Feature.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u64 {
        /// Get Keyed Num Descs is allowed.
        const KEYED_NUM_DESCS = 1 << 0;
        /// Eager buffers of the base profile are allowed.
        const KEYED_EAGER_BUF = 1 << 1;
        /// VQX, extended control commands, reply bodies.
        const BASE = 1 << 32;
        /// Readable bytes travel in the command message.
        const INLINE_OUT = 1 << 33;
        /// The last writable bytes may travel in the completion.
        const TAIL_IN = 1 << 34;
        /// Completion by RDMA WRITE with immediate.
        const IMM_COMP = 1 << 35;
        /// Remote invalidation of a key.
        const REMOTE_INV = 1 << 36;
        /// The target offers slots.
        const EAGER_SLOT = 1 << 37;
        /// Windows change while a queue is open.
        const WINDOW = 1 << 38;
        /// A session outlives its connections.
        const RESUME = 1 << 39;
        /// Authentication.
        const AUTH = 1 << 40;
        /// Abort and reset of one virtqueue.
        const ABORT_RESET = 1 << 41;
        /// Configuration space in one command.
        const BULK_CONFIG = 1 << 42;
        /// Device state can be exported.
        const MIGRATE = 1 << 43;
        /// Frames on a stream.
        const FRAME = 1 << 44;
        /// Checksums in frames.
        const DIGEST = 1 << 45;
        /// Events beyond the base profile's two.
        const EVENTS = 1 << 46;
        /// Discovery.
        const DISCOVERY = 1 << 47;
    }
}

impl Features {
    /// Bits from here on belong to the extension and are fixed by Connect.
    pub const EXTENSION: Features = Features::from_bits_retain(!0 << 32);

    /// These features without those whose prerequisites are missing.
    pub fn consistent(self) -> Features {
        let needs = [
            (Features::EXTENSION.difference(Features::BASE), Features::BASE),
            (Features::MIGRATE, Features::RESUME),
            (Features::DIGEST, Features::FRAME),
        ];
        needs.iter().fold(
            self,
            |features, (what, need)| {
                if features.contains(*need) { features } else { features.difference(*what) }
            },
        )
    }
}
