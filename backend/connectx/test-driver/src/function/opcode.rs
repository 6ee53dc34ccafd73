//! Commands and their outcomes, by number.

macro_rules! codes {
    ($(#[$outer:meta])* $name:ident: $raw:ty { $($(#[$inner:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$inner])* $variant,)*
            /// Another value.
            Other($raw),
        }

        impl $name {
            /// The value in the interface.
            pub const fn code(self) -> $raw {
                match self {
                    $(Self::$variant => $value,)*
                    Self::Other(code) => code,
                }
            }

            /// Returns the meaning of a value.
            pub const fn from_code(code: $raw) -> Self {
                match code {
                    $($value => Self::$variant,)*
                    other => Self::Other(other),
                }
            }
        }
    };
}
pub(crate) use codes;

codes! {
    /// A command of the interface.
    #[allow(missing_docs, reason = "the names are the interface's own")]
    Opcode: u16 {
        QueryHcaCap = 0x100,
        QueryAdapter = 0x101,
        InitHca = 0x102,
        TeardownHca = 0x103,
        EnableHca = 0x104,
        DisableHca = 0x105,
        QueryPages = 0x107,
        ManagePages = 0x108,
        SetHcaCap = 0x109,
        QueryIssi = 0x10a,
        SetIssi = 0x10b,
        CreateMkey = 0x200,
        QueryMkey = 0x201,
        DestroyMkey = 0x202,
        QuerySpecialContexts = 0x203,
        PageFaultResume = 0x204,
        AllocMemic = 0x205,
        DeallocMemic = 0x206,
        CreateEq = 0x301,
        DestroyEq = 0x302,
        QueryEq = 0x303,
        CreateCq = 0x400,
        DestroyCq = 0x401,
        QueryCq = 0x402,
        ModifyCq = 0x403,
        CreateQp = 0x500,
        DestroyQp = 0x501,
        Rst2InitQp = 0x502,
        Init2RtrQp = 0x503,
        Rtr2RtsQp = 0x504,
        Rts2RtsQp = 0x505,
        SqErr2RtsQp = 0x506,
        ToErrQp = 0x507,
        ToRstQp = 0x50a,
        QueryQp = 0x50b,
        MadIfc = 0x50d,
        Init2InitQp = 0x50e,
        CreatePsv = 0x600,
        DestroyPsv = 0x601,
        CreateSrq = 0x700,
        DestroySrq = 0x701,
        QuerySrq = 0x702,
        ArmRq = 0x703,
        CreateXrcSrq = 0x705,
        DestroyXrcSrq = 0x706,
        QueryXrcSrq = 0x707,
        ArmXrcSrq = 0x708,
        CreateDct = 0x710,
        DestroyDct = 0x711,
        DrainDct = 0x712,
        QueryDct = 0x713,
        ArmDctForKeyViolation = 0x714,
        CreateXrq = 0x717,
        DestroyXrq = 0x718,
        QueryXrq = 0x719,
        ArmXrq = 0x71a,
        QueryHcaVportContext = 0x762,
        ModifyHcaVportContext = 0x763,
        QueryHcaVportGid = 0x764,
        QueryHcaVportPkey = 0x765,
        AllocPd = 0x800,
        DeallocPd = 0x801,
        AllocUar = 0x802,
        DeallocUar = 0x803,
        AccessReg = 0x805,
        AttachToMcg = 0x806,
        DetachFromMcg = 0x807,
        AllocXrcd = 0x80e,
        DeallocXrcd = 0x80f,
        AllocTransportDomain = 0x816,
        DeallocTransportDomain = 0x817,
        CreateTir = 0x900,
        DestroyTir = 0x902,
        CreateSq = 0x904,
        ModifySq = 0x905,
        DestroySq = 0x906,
        CreateRq = 0x908,
        ModifyRq = 0x909,
        DestroyRq = 0x90a,
        QueryRq = 0x90b,
        CreateTis = 0x912,
        DestroyTis = 0x914,
        CreateRqt = 0x916,
        DestroyRqt = 0x918,
        SetFlowTableRoot = 0x92f,
        CreateFlowTable = 0x930,
        CreateFlowGroup = 0x933,
        SetFlowTableEntry = 0x936,
    }
}

codes! {
    /// Outcome of a command.
    Status: u8 {
        /// It succeeded.
        Ok = 0x00,
        /// The device failed.
        InternalError = 0x01,
        /// There is no such command.
        BadOp = 0x02,
        /// A parameter is out of range.
        BadParam = 0x03,
        /// Not in this state of the device.
        BadSysState = 0x04,
        /// There is no such object.
        BadResource = 0x05,
        /// The object is in use.
        ResourceBusy = 0x06,
        /// A limit is exceeded.
        ExceedLimit = 0x08,
        /// Not in this state of the object.
        BadResState = 0x09,
        /// An index is out of range.
        BadIndex = 0x0a,
        /// Nothing is left.
        NoResources = 0x0f,
        /// Not in this state of the queue pair.
        BadQpState = 0x10,
        /// The request is too short.
        BadInputLen = 0x50,
        /// The room for the reply is too short.
        BadOutputLen = 0x51,
    }
}
