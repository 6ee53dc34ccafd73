//! The command interface: queue entry, mailbox block, opcodes, statuses, and
//! the small requests and replies.

use super::{Field, Wide, structures};

structures! {
    /// An entry of the command queue.
    mlx5_cmd_layout(64) {
        TYPE: 0x00 [31:24];
        INLEN: 0x04 [31:0];
        IN_PTR: 0x08 wide;
        IN: 0x10 (16);
        OUT: 0x20 (16);
        OUT_PTR: 0x30 wide;
        OUTLEN: 0x38 [31:0];
        TOKEN: 0x3c [31:24];
        SIG: 0x3c [23:16];
        STATUS_OWN: 0x3c [7:0];
    }

    /// A mailbox block: what of a request or reply exceeds 16 bytes is in a
    /// chain of these.
    mlx5_cmd_prot_block(576) {
        DATA: 0x000 (512);
        NEXT: 0x230 wide;
        BLOCK_NUM: 0x238 [31:0];
        TOKEN: 0x23c [23:16];
    }

    /// Request of CREATE_EQ; the page list follows it. All requests have its
    /// first three fields.
    create_eq_in(272) {
        OPCODE: 0x00 [31:16];
        /// The user context that the command is for.
        UID: 0x00 [15:0];
        OP_MOD: 0x04 [15:0];
        EQ_CONTEXT_ENTRY: 0x10 (64);
        EVENT_BITMASK: 0x58 (32);
    }

    /// Reply of ALLOC_PD. All replies have its first two fields.
    alloc_pd_out(16) {
        STATUS: 0x00 [31:24];
        SYNDROME: 0x04 [31:0];
        /// Where all objects but event queues have their number, in requests
        /// as in replies.
        PD: 0x08 [23:0];
    }

    /// Reply of QUERY_ISSI.
    query_issi_out(112) {
        CURRENT_ISSI: 0x08 [15:0];
        SUPPORTED_ISSI_DW0: 0x6c [31:0];
    }

    /// Request of SET_ISSI.
    set_issi_in(16) {
        CURRENT_ISSI: 0x08 [15:0];
    }

    /// Reply of QUERY_PAGES.
    query_pages_out(16) {
        NUM_PAGES: 0x0c [31:0];
    }

    /// Reply of QUERY_ADAPTER.
    query_adapter_out(272) {
        QUERY_ADAPTER_STRUCT: 0x10 (256);
    }

    /// The adapter, as QUERY_ADAPTER describes it.
    query_adapter_param_block(256) {
        IEEE_VENDOR_ID: 0x18 [23:0];
        /// Sixteen characters that identify the board.
        VSD_CONTD_PSID: 0xf0 (16);
    }

    /// Request of ALLOC_MEMIC.
    alloc_memic_in(32) {
        LOG_MEMIC_ADDR_ALIGNMENT: 0x0c [7:0];
        RANGE_START_ADDR: 0x10 wide;
        RANGE_SIZE: 0x18 [31:0];
        MEMIC_SIZE: 0x1c [31:0];
    }

    /// Reply of ALLOC_MEMIC.
    alloc_memic_out(16) {
        MEMIC_START_ADDR: 0x08 wide;
    }

    /// Request of DEALLOC_MEMIC.
    dealloc_memic_in(32) {
        MEMIC_START_ADDR: 0x10 wide;
        MEMIC_SIZE: 0x18 [31:0];
    }

    /// Request of ATTACH_TO_MCG and DETACH_FROM_MCG.
    attach_to_mcg_in(32) {
        QPN: 0x08 [23:0];
        MULTICAST_GID: 0x10 (16);
    }
}

/// Request of CREATE_UMEM; the list of pages follows it. The description of the interface that others are held
/// against has it not.
pub mod create_umem_in {
    use crate::bits::{Field, Wide};

    /// Bytes before the list.
    pub const SIZE: usize = 0x30;
    /// The page size, as a power of two of 4 KiB.
    pub const LOG_PAGE_SIZE: Field = Field::new(0x20, 4, 0);
    /// Where the object begins in the first page, in bytes.
    pub const PAGE_OFFSET: Field = Field::new(0x24, 31, 0);
    /// Number of pages that follow.
    pub const NUM_OF_MTT: Wide = Wide::new(0x28);
}

/// In a request of MANAGE_PAGES: how many pages.
pub const PAGES_GIVEN: Field = Field::new(0x0c, 31, 0);
/// In its reply: how many pages are given back.
pub const PAGES_RETURNED: Field = Field::new(0x08, 31, 0);
/// Offset of the list of pages in both.
pub const PAGE_LIST: usize = 0x10;
/// Request of CREATE_UCTX: the rights that the context is to have.
pub const UCTX_RIGHTS: Field = Field::new(0x10, 31, 0);
/// Reply of CREATE_UCTX and request of DESTROY_UCTX: the context.
pub const UCTX: Field = Field::new(0x08, 15, 0);

/// Request of a command about a general object, which differ by their type. rdma-core's `mlx5_ifc.h` has the layouts;
/// the description of the interface that the others are held against has not.
pub mod general_obj_in_cmd_hdr {
    use crate::bits::Field;

    /// The object's type.
    pub const OBJ_TYPE: Field = Field::new(0x04, 15, 0);
    /// Its number.
    pub const OBJ_ID: Field = Field::new(0x08, 31, 0);
}

/// Reply of CREATE_GENERAL_OBJECT.
pub mod general_obj_out_cmd_hdr {
    use crate::bits::Field;

    /// The object's number.
    pub const OBJ_ID: Field = Field::new(0x08, 31, 0);
}

/// In a request to create objects: their number in a row, as a power of two.
pub const LOG_OBJ_RANGE: Field = Field::new(0x0c, 28, 24);

/// Type of an object: a number that no queue pair gets.
pub const RESERVED_QPN: u32 = 0x2c;

/// Command type of an entry.
pub const ENTRY_TYPE: u32 = 7;
/// Bytes of an entry.
pub const ENTRY_SIZE: usize = mlx5_cmd_layout::SIZE;
/// Bytes of a mailbox block.
pub const BLOCK_SIZE: usize = mlx5_cmd_prot_block::SIZE;
/// Bytes of request or reply in one block.
pub const BLOCK_DATA: usize = 512;
/// Bytes of request or reply in the entry itself.
pub const ENTRY_DATA: usize = 16;
/// Owner bit in the last byte of an entry: set while the device has it.
pub const OWNER_HARDWARE: u8 = 1;

/// Declares an enumeration of codes that come from outside.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident : $type:ty { $( $(#[$note:meta])* $variant:ident = $code:literal, )* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $(
                #[doc = concat!("Code ", stringify!($code), ".")]
                $(#[$note])*
                $variant = $code,
            )*
        }

        impl $name {
            /// The meaning of a code, if it has one.
            #[must_use]
            pub const fn from_code(code: $type) -> Option<Self> {
                match code {
                    $( $code => Some(Self::$variant), )*
                    _ => None,
                }
            }

            /// The code.
            #[must_use]
            pub const fn code(self) -> $type {
                self as $type
            }
        }
    };
}
pub(crate) use codes;

/// In CREATE_EQ: the first of the mask's four words, which alone has events.
pub const EVENT_MASK: Wide = Wide::new(0x58);

/// Declares the opcodes: those of every function as one enumeration, and those with the offered ones as another.
macro_rules! opcodes {
    (
        basic { $( $basic:ident = $basic_code:literal, )* }
        offered { $( $offered:ident = $offered_code:literal, )* }
    ) => {
        codes! {
            /// Commands that every function knows, be it software or a VF of an adapter.
            Opcode: u16 { $( $basic = $basic_code, )* }
        }

        codes! {
            /// All commands of a function of software: those of every function, and those that drivers send where the
            /// capabilities offer what they are about.
            AnyOpcode: u16 { $( $basic = $basic_code, )* $( $offered = $offered_code, )* }
        }

        impl AnyOpcode {
            /// All of them.
            pub const ALL: &[Self] = &[$( Self::$basic, )* $( Self::$offered, )*];
        }

        impl From<Opcode> for AnyOpcode {
            fn from(opcode: Opcode) -> Self {
                match opcode {
                    $( Opcode::$basic => Self::$basic, )*
                }
            }
        }
    };
}

opcodes! {
    basic {
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
        Rst2Init = 0x502,
        Init2Rtr = 0x503,
        Rtr2Rts = 0x504,
        Rts2Rts = 0x505,
        Sqerr2Rts = 0x506,
        ToErr = 0x507,
        ToRst = 0x50a,
        QueryQp = 0x50b,
        Sqd2Rts = 0x50c,
        MadIfc = 0x50d,
        Init2Init = 0x50e,
        CreatePsv = 0x600,
        DestroyPsv = 0x601,
        CreateSrq = 0x700,
        DestroySrq = 0x701,
        QuerySrq = 0x702,
        ArmRq = 0x703,
        CreateDct = 0x710,
        DestroyDct = 0x711,
        DrainDct = 0x712,
        QueryDct = 0x713,
        ArmDctForKeyViolation = 0x714,
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
        AllocQCounter = 0x771,
        DeallocQCounter = 0x772,
        QueryQCounter = 0x773,
        AllocXrcd = 0x80e,
        DeallocXrcd = 0x80f,
        QueryLag = 0x842,
        CreateGeneralObject = 0xa00,
        DestroyGeneralObject = 0xa03,
    }
    offered {
        // Memory objects of user contexts and of the driver.
        CreateUmem = 0xa08,
        DestroyUmem = 0xa0a,
        // User contexts.
        CreateUctx = 0xa04,
        DestroyUctx = 0xa06,
        // Shared receive queues in version 1 of the interface (ISSI), and in any version those with tags.
        CreateXrcSrq = 0x705,
        DestroyXrcSrq = 0x706,
        QueryXrcSrq = 0x707,
        ArmXrcSrq = 0x708,
        CreateXrq = 0x717,
        DestroyXrq = 0x718,
        QueryXrq = 0x719,
        ArmXrq = 0x71a,
        CreateRmp = 0x90c,
        ModifyRmp = 0x90d,
        DestroyRmp = 0x90e,
        QueryRmp = 0x90f,
        // Queues and tables of network interfaces.
        QueryVportCounter = 0x770,
        AllocTransportDomain = 0x816,
        DeallocTransportDomain = 0x817,
        CreateTir = 0x900,
        ModifyTir = 0x901,
        DestroyTir = 0x902,
        CreateSq = 0x904,
        ModifySq = 0x905,
        DestroySq = 0x906,
        QuerySq = 0x907,
        CreateRq = 0x908,
        ModifyRq = 0x909,
        DestroyRq = 0x90a,
        QueryRq = 0x90b,
        CreateTis = 0x912,
        DestroyTis = 0x914,
        CreateRqt = 0x916,
        ModifyRqt = 0x917,
        DestroyRqt = 0x918,
        SetFlowTableRoot = 0x92f,
        CreateFlowTable = 0x930,
        DestroyFlowTable = 0x931,
        CreateFlowGroup = 0x933,
        DestroyFlowGroup = 0x934,
        SetFlowTableEntry = 0x936,
        DeleteFlowTableEntry = 0x938,
        // Paging on demand.
        QuerySpecialContexts = 0x203,
        PageFaultResume = 0x204,
    }
}

codes! {
    /// Outcome of a command, in the reply.
    Status: u8 {
        Ok = 0x00,
        Internal = 0x01,
        BadOperation = 0x02,
        BadParameter = 0x03,
        BadSystemState = 0x04,
        BadResource = 0x05,
        ResourceBusy = 0x06,
        ExceededLimits = 0x08,
        BadResourceState = 0x09,
        BadIndex = 0x0a,
        NoResources = 0x0f,
        BadQpState = 0x10,
        BadInputLength = 0x50,
        BadOutputLength = 0x51,
    }
}

codes! {
    /// Outcome of fetching a command, in the queue entry.
    Delivery: u8 {
        Ok = 0x00,
        BadToken = 0x02,
        BadBlockNumber = 0x03,
        OutputPointer = 0x04,
        InputPointer = 0x05,
        InputLength = 0x07,
        OutputLength = 0x08,
        BadDescriptor = 0x10,
    }
}
