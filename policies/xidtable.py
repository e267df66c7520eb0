"""NVIDIA's XID catalogue, with descriptions in our own words.

Source: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, the spreadsheet of 2025-09-30 (172 codes,
Ampere and newer), read 2026-11-20. Where the catalogue names a procedure instead of an action, the table has the action
that the procedure gives for a single event; if that depends on more than the code, it has the stricter action.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

DATE = "2025-09-30"
RECOVERY = 154  # the code whose message names the action


class RequiredAction(Enum):
    """The action that a code requires, from the mildest to the strictest."""

    NONE = "none"
    IGNORE = "ignore"
    RESTART_APP = "restart_app"
    UPDATE_SOFTWARE = "update_software"
    DRAIN_P2P = "drain_p2p"
    WORKFLOW_NVLINK = "workflow_nvlink"
    RESET_GPU = "reset_gpu"
    RESTART_VM_OR_NODE = "restart_vm_or_node"
    CHECK_MECHANICALS = "check_mechanicals"
    CONTACT_SUPPORT = "contact_support"


class XidScope(Enum):
    """The smallest unit that a code, or the recovery from it, concerns."""

    APP = "app"
    GPU = "gpu"
    LINK = "link"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class XidRow:
    """One code of the catalogue."""

    code: int
    mnemonic: str
    action: RequiredAction
    scope: XidScope
    description: str

    @property
    def application(self) -> bool:
        """Whether an application failed, so that the device may stay in service."""
        return self.action is RequiredAction.RESTART_APP


_CATALOGUE = {
    RequiredAction.NONE: """
        154 gpu GPU_RECOVERY_ACTION_CHANGED Driver announces which recovery the GPU now needs
        162 gpu PSHC_REENGAGED Power-smoothing circuit active again
        163 gpu PSHC_DISENGAGED Power-smoothing circuit switched off
        164 gpu PSHC_LOW_LIFETIME Power-smoothing circuit close to end of life
        165 gpu PSHC_ZERO_LIFETIME Power-smoothing circuit worn out
        166 link NVLINK_SECURE_CRYPTO_ERR Confidential-mode NVLink traffic before encryption was ready
        167 link PCIE_FATAL_TIMEOUT Fatal timeout on the PCIe interface
        168 gpu REDUCED_GPU_MEMORY_CAPACITY Protected memory region has errors, usable capacity may shrink
        169 gpu SEC2_HALT_ERROR SEC2 security co-processor halted
        170 link NVLINK_SECURE_OTHER Other NVLink interrupt in confidential mode
        171 gpu UNCORRECTABLE_DRAM_ERROR DRAM detail that accompanies XID 48
        172 gpu UNCORRECTABLE_SRAM_ERROR SRAM detail that accompanies XID 48
    """,
    RequiredAction.IGNORE: """
        14 app ROBUST_CHANNEL_FAKE_ERROR Synthetic error injected from user space
        37 app ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD Context-switch firmware got a method it does not implement
        38 gpu ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT Context-switch firmware watchdog expired
        43 app ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR Channel torn down after a software fault, GPU stays usable
        44 gpu ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW Engine fault in the middle of a context switch
        45 app ROBUST_CHANNEL_PREEMPTIVE_REMOVAL Channel removed early because its process ended or failed
        63 gpu INFOROM_DRAM_RETIREMENT_EVENT Faulty memory row or page recorded for replacement
        66 app ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION Context-switch firmware blocked a forbidden register access
        67 app ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION Context-switch firmware found a verification violation
        92 gpu EXCESSIVE_SBE_INTERRUPTS Correctable (single-bit) ECC errors arrive unusually fast
        93 gpu INFOROM_ERASE_LIMIT_EXCEEDED InfoROM write refused because its erase budget is spent
        106 gpu SMBPBI_TEST_MESSAGE Out-of-band management (SMBPBI) test message
        107 gpu SMBPBI_TEST_MESSAGE_SILENT Quiet variant of the SMBPBI test message
        108 app NVLINK_REMOTE_TRANSLATION_ERROR Address translation on a remote NVLink peer failed
        121 link C2C_ERROR Corrected bit errors on the CPU-GPU chip-to-chip link
        137 app NVLINK_PRIV_ERR Remote NVLink peer refused an access, usually an application bug
        141 app ROBUST_CHANNEL_FAST_PATH_ERROR CUDA fast-path submission fault
        152 gpu ROBUST_CHANNEL_DLA_SMMU_ERROR Deep-learning accelerator IOMMU fault
        153 gpu ROBUST_CHANNEL_DLA_TIMEOUT Deep-learning accelerator timeout
        157 gpu RESOURCE_RETIREMENT_FAILURE Faulty resource could not be replaced, no spares left
        160 gpu CHANNEL_RETIREMENT_EVENT A hardware channel was taken out of use
        161 gpu CHANNEL_RETIREMENT_FAILURE A hardware channel could not be taken out of use
    """,
    RequiredAction.RESTART_APP: """
        8 app ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT Channel idle timeout: submitted work made no progress
        11 app ROBUST_CHANNEL_GR_ERROR_MISSING_HW Malformed command stream addressed functions the engine lacks
        13 app ROBUST_CHANNEL_GR_EXCEPTION Compute/graphics engine fault, most often an application memory bug
        25 app ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY Command stream carried an illegal notify request
        31 app ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT MMU fault: a process touched an unmapped or forbidden GPU address
        32 app ROBUST_CHANNEL_PBDMA_ERROR Command-fetch (PBDMA) fault, sometimes poor PCIe signal quality
        39 app ROBUST_CHANNEL_CE0_ERROR Copy engine 0 fault
        40 app ROBUST_CHANNEL_CE1_ERROR Copy engine 1 fault
        41 app ROBUST_CHANNEL_CE2_ERROR Copy engine 2 fault
        60 app ROBUST_CHANNEL_SEC2_ERROR SEC2 security/video co-processor fault
        68 app ROBUST_CHANNEL_NVDEC0_ERROR Video decoder 0 fault
        69 app ROBUST_CHANNEL_GR_CLASS_ERROR Engine rejected a graphics class method
        70 app ROBUST_CHANNEL_CE3_ERROR Copy engine 3 fault
        71 app ROBUST_CHANNEL_CE4_ERROR Copy engine 4 fault
        72 app ROBUST_CHANNEL_CE5_ERROR Copy engine 5 fault
        75 app ROBUST_CHANNEL_CE6_ERROR Copy engine 6 fault
        76 app ROBUST_CHANNEL_CE7_ERROR Copy engine 7 fault
        77 app ROBUST_CHANNEL_CE8_ERROR Copy engine 8 fault
        80 app PBDMA_PUSHBUFFER_CRC_MISMATCH Command data reached the GPU with a wrong checksum
        82 app ROBUST_CHANNEL_NVJPG0_ERROR JPEG engine 0 fault
        83 app ROBUST_CHANNEL_NVDEC1_ERROR Video decoder 1 fault
        84 app ROBUST_CHANNEL_NVDEC2_ERROR Video decoder 2 fault
        85 app ROBUST_CHANNEL_CE9_ERROR Copy engine 9 fault
        86 app ROBUST_CHANNEL_OFA0_ERROR Optical-flow accelerator 0 fault
        88 app ROBUST_CHANNEL_NVDEC3_ERROR Video decoder 3 fault
        89 app ROBUST_CHANNEL_NVDEC4_ERROR Video decoder 4 fault
        94 app ROBUST_CHANNEL_CONTAINED_ERROR Memory error whose damage is limited to one process
        96 app ROBUST_CHANNEL_NVDEC5_ERROR Video decoder 5 fault
        97 app ROBUST_CHANNEL_NVDEC6_ERROR Video decoder 6 fault
        98 app ROBUST_CHANNEL_NVDEC7_ERROR Video decoder 7 fault
        99 app ROBUST_CHANNEL_NVJPG1_ERROR JPEG engine 1 fault
        100 app ROBUST_CHANNEL_NVJPG2_ERROR JPEG engine 2 fault
        101 app ROBUST_CHANNEL_NVJPG3_ERROR JPEG engine 3 fault
        102 app ROBUST_CHANNEL_NVJPG4_ERROR JPEG engine 4 fault
        103 app ROBUST_CHANNEL_NVJPG5_ERROR JPEG engine 5 fault
        104 app ROBUST_CHANNEL_NVJPG6_ERROR JPEG engine 6 fault
        105 app ROBUST_CHANNEL_NVJPG7_ERROR JPEG engine 7 fault
        126 app ROBUST_CHANNEL_CE10_ERROR Copy engine 10 fault
        127 app ROBUST_CHANNEL_CE11_ERROR Copy engine 11 fault
        128 app ROBUST_CHANNEL_CE12_ERROR Copy engine 12 fault
        129 app ROBUST_CHANNEL_CE13_ERROR Copy engine 13 fault
        130 app ROBUST_CHANNEL_CE14_ERROR Copy engine 14 fault
        131 app ROBUST_CHANNEL_CE15_ERROR Copy engine 15 fault
        132 app ROBUST_CHANNEL_CE16_ERROR Copy engine 16 fault
        133 app ROBUST_CHANNEL_CE17_ERROR Copy engine 17 fault
        134 app ROBUST_CHANNEL_CE18_ERROR Copy engine 18 fault
        135 app ROBUST_CHANNEL_CE19_ERROR Copy engine 19 fault
        139 app ROBUST_CHANNEL_OFA1_ERROR Optical-flow accelerator 1 fault
    """,
    RequiredAction.UPDATE_SOFTWARE: """
        78 node VGPU_START_ERROR vGPU could not start, usually mismatched guest and host software
    """,
    RequiredAction.WORKFLOW_NVLINK: """
        74 link NVLINK_ERROR NVLink fault towards a peer GPU or switch
        144 link NVLINK_SAW_ERROR NVLink 5 fault in the SAW unit, decode first
        145 link NVLINK_RLW_ERROR NVLink 5 fault in the RLW unit, decode first
        146 link NVLINK_TLW_ERROR NVLink 5 fault in the TLW unit, decode first
        147 link NVLINK_TREX_ERROR NVLink 5 fault in the TREX unit, decode first
        148 link NVLINK_NVLPW_CTRL_ERROR NVLink 5 fault in the NVLPW control unit, decode first
        149 link NVLINK_NETIR_ERROR NVLink 5 fault in the NETIR unit, decode first
        150 link NVLINK_MSE_ERROR NVLink 5 fault in the MSE unit, decode first
    """,
    RequiredAction.RESET_GPU: """
        46 gpu ROBUST_CHANNEL_GPU_TIMEOUT_ERROR GPU-level timeout: an engine no longer processes work
        48 gpu ROBUST_CHANNEL_GPU_ECC_DBE Uncorrectable (double-bit) ECC error in DRAM or SRAM
        62 gpu PMU_HALT_ERROR Power-management controller (PMU) halted
        64 gpu INFOROM_DRAM_RETIREMENT_FAILURE Recording a memory row or page replacement failed
        95 gpu ROBUST_CHANNEL_UNCONTAINED_ERROR Memory error that may have reached several processes
        109 gpu ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR Context switch did not finish in time
        110 gpu SEC_FAULT_ERROR Hardware security fault
        119 gpu GSP_RPC_TIMEOUT GSP firmware left a driver request unanswered
        120 gpu GSP_ERROR GSP firmware reported an internal error
        136 link ALI_TRAINING_FAIL NVLink training did not complete
        140 gpu UNRECOVERABLE_ECC_ERROR_ESCAPE Uncorrected memory error escaped before retirement could record it
        143 gpu GPU_INIT_ERROR GPU failed to initialise
        155 link NVLINK_SW_DEFINED_ERROR NVLink taken down on purpose or by software
        156 gpu RESOURCE_RETIREMENT_EVENT A faulty hardware resource was taken out of use
        158 gpu GPU_FATAL_TIMEOUT Unrecoverable timeout inside the GPU
        159 link ROBUST_CHANNEL_CHI_NON_DATA_ERROR Non-data error on the coherent CPU-GPU interface
    """,
    RequiredAction.RESTART_VM_OR_NODE: """
        79 node ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS GPU no longer answers on PCIe
        151 node ROBUST_CHANNEL_KEY_ROTATION_ERROR Confidential-computing key rotation failed
    """,
    RequiredAction.CHECK_MECHANICALS: """
        54 node SILENT_RUNNING_PWR_REDUCED_CLOCKING Auxiliary power lead missing or loose on the board
    """,
    RequiredAction.CONTACT_SUPPORT: """
        1 app ROBUST_CHANNEL_FIFO_ERROR_FIFO_METHOD Retired: host FIFO method fault
        2 app ROBUST_CHANNEL_FIFO_ERROR_SW_METHOD Retired: host FIFO software-method fault
        3 app ROBUST_CHANNEL_FIFO_ERROR_UNK_METHOD Retired: host FIFO unknown-method fault
        4 app ROBUST_CHANNEL_FIFO_ERROR_CHANNEL_BUSY Retired: host FIFO channel stayed busy
        5 app ROBUST_CHANNEL_FIFO_ERROR_RUNOUT_OVERFLOW Retired: host FIFO runout overflow
        6 app ROBUST_CHANNEL_FIFO_ERROR_PARSE_ERR Retired: host FIFO command parse fault
        7 app ROBUST_CHANNEL_FIFO_ERROR_PTE_ERR Retired: host FIFO page-table-entry fault
        9 app ROBUST_CHANNEL_GR_ERROR_INSTANCE Retired: graphics engine instance fault
        10 app ROBUST_CHANNEL_GR_ERROR_SINGLE_STEP Retired: graphics engine single-step fault
        12 app ROBUST_CHANNEL_GR_ERROR_SW_METHOD Retired: graphics engine software-method fault
        15 gpu ROBUST_CHANNEL_SCANLINE_TIMEOUT Retired: display scanline timeout
        16 gpu ROBUST_CHANNEL_VBLANK_CALLBACK_TIMEOUT Retired: display vertical-blank callback timeout
        17 app ROBUST_CHANNEL_PARAMETER_ERROR Retired: invalid channel parameter
        18 gpu ROBUST_CHANNEL_BUS_MASTER_TIMEOUT_ERROR Retired: PCI bus-master timeout
        19 gpu ROBUST_CHANNEL_DISP_MISSED_NOTIFIER Retired: display notifier missed
        20 app ROBUST_CHANNEL_MPEG_ERROR_SW_METHOD Retired: MPEG engine software-method fault
        21 app ROBUST_CHANNEL_ME_ERROR_SW_METHOD Retired: motion-estimation engine software-method fault
        22 app ROBUST_CHANNEL_VP_ERROR_SW_METHOD Retired: video processor software-method fault
        23 gpu ROBUST_CHANNEL_RC_LOGGING_ENABLED Retired: channel error logging switched on
        24 app ROBUST_CHANNEL_GR_SEMAPHORE_TIMEOUT Retired: graphics semaphore timeout
        26 gpu ROBUST_CHANNEL_FIFO_ERROR_FBISTATE_TIMEOUT Retired: framebuffer interface state timeout
        27 app ROBUST_CHANNEL_VP_ERROR Retired: video processor fault
        28 app ROBUST_CHANNEL_VP2_ERROR Retired: second-generation video processor fault
        29 app ROBUST_CHANNEL_BSP_ERROR Retired: bitstream processor fault
        30 app ROBUST_CHANNEL_BAD_ADDR_ACCESS Retired: access to a bad address
        33 gpu ROBUST_CHANNEL_SEC_ERROR Retired: security engine fault
        34 app ROBUST_CHANNEL_MSVLD_ERROR Retired: video stream decoder (MSVLD) fault
        35 app ROBUST_CHANNEL_MSPDEC_ERROR Retired: picture decoder (MSPDEC) fault
        36 app ROBUST_CHANNEL_MSPPP_ERROR Retired: video post-processor (MSPPP) fault
        42 app ROBUST_CHANNEL_VIC_ERROR Retired: video image compositor fault
        47 app ROBUST_CHANNEL_NVENC0_ERROR Retired: video encoder 0 fault
        49 gpu SILENT_RUNNING_CONSTANT_LEVEL_SET_BY_REGISTRY Retired: quiet-mode level pinned by a registry key
        50 gpu SILENT_RUNNING_LEVEL_TRANSITION_DUE_TO_RC_ERROR Retired: quiet-mode level changed after a channel error
        51 gpu SILENT_RUNNING_STRESS_TEST_FAILURE Retired: quiet-mode stress test failed
        52 gpu SILENT_RUNNING_LEVEL_TRANS_DUE_TO_TEMP_RISE Retired: quiet-mode level changed by temperature
        53 gpu SILENT_RUNNING_TEMP_REDUCED_CLOCKING Retired: clocks lowered by temperature
        55 gpu SILENT_RUNNING_TEMPERATURE_READ_ERROR Retired: temperature sensor read failed
        56 gpu DISPLAY_CHANNEL_EXCEPTION Retired: display channel exception
        57 gpu FB_LINK_TRAINING_FAILURE_ERROR Retired: memory interface training failed
        58 gpu FB_MEMORY_ERROR Retired: framebuffer memory error
        59 gpu PMU_ERROR Retired: power-management controller error
        61 gpu PMU_BREAKPOINT Retired: power-management controller breakpoint
        65 app ROBUST_CHANNEL_NVENC1_ERROR Retired: video encoder 1 fault
        73 app ROBUST_CHANNEL_NVENC2_ERROR Retired: video encoder 2 fault
        81 gpu ROBUST_CHANNEL_VGA_SUBSYSTEM_ERROR Retired: legacy VGA block error
        87 gpu NVTELEMETRY_DRIVER_REPORT Retired: driver telemetry report
        90 gpu LTC_ERROR Retired: L2 cache error
        91 gpu RESERVED_XID Retired: reserved number
        111 gpu BUNDLE_ERROR_EVENT Retired: display bundle error
        112 gpu DISP_SUPERVISOR_ERROR Retired: display supervisor error
        113 gpu DP_LT_FAILURE Retired: DisplayPort link training failed
        114 gpu HEAD_RG_UNDERFLOW Retired: display head underflow
        115 gpu CORE_CHANNEL_REGS Retired: display core channel register error
        116 gpu WINDOW_CHANNEL_REGS Retired: display window channel register error
        117 gpu CURSOR_CHANNEL_REGS Retired: display cursor channel register error
        118 gpu HEAD_REGS Retired: display head register error
        122 gpu SPI_PMU_RPC_READ_FAIL Retired: flash read through the PMU failed
        123 gpu SPI_PMU_RPC_WRITE_FAIL Retired: flash write through the PMU failed
        124 gpu SPI_PMU_RPC_ERASE_FAIL Retired: flash erase through the PMU failed
        125 gpu INFOROM_FS_ERROR Retired: InfoROM file-system error
        138 gpu ROBUST_CHANNEL_DLA_ERROR Retired: deep-learning accelerator fault
        142 app ROBUST_CHANNEL_NVENC3_ERROR Video encoder 3 fault
    """,
}


def _row(action: RequiredAction, line: str) -> XidRow:
    code, scope, mnemonic, description = line.split(maxsplit=3)
    return XidRow(int(code), mnemonic, action, XidScope(scope), description)


ROWS = {
    row.code: row
    for row in sorted(
        (_row(action, line) for action, lines in _CATALOGUE.items() for line in lines.strip().splitlines()),
        key=lambda row: row.code,
    )
}
"""The catalogue by code, in order."""
