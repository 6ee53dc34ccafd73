#!/bin/sh
# Prints where the fields of the interface's structures are, computed by the C
# compiler from headers that others wrote. The output is layout.txt: structure,
# field, first bit, number of bits (0 for a list of any length).
#
#   ./layout.sh LINUX RDMA_CORE > layout.txt
#
# LINUX is a Linux source tree, RDMA_CORE one of rdma-core.
set -eu
linux=$1 rdma=$2
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

# mlx5_ifc.h: one array element per bit.
ifc='cmd_hca_cap atomic_caps device_mem_cap debug_cap resource_dump resource_dump_segment_header resource_dump_info_segment resource_dump_command_segment
resource_dump_menu_segment resource_dump_menu_record resource_dump_resource_segment resource_dump_error_segment alloc_memic_in alloc_memic_out dealloc_memic_in query_hca_cap_out set_hca_cap_in eqc create_eq_in cqc create_cq_in modify_cq_in qpc ads
create_qp_in query_qp_out query_eq_out query_cq_out query_mkey_out query_srq_out mkc create_mkey_in srqc create_srq_in
hca_vport_context modify_hca_vport_context_in query_hca_vport_gid_in query_hca_vport_gid_out query_hca_vport_pkey_in
query_hca_vport_context_out access_register_in access_register_out ptys_reg pmtu_reg pvlc_reg mad_ifc_in mad_ifc_out
query_issi_out set_issi_in query_pages_out query_adapter_out query_adapter_param_block arm_rq_in attach_to_mcg_in query_special_contexts_out
odp_cap odp_per_transport_service_cap page_fault_resume_in page_fault_resume_out wqe_associated_page_fault_event
rdma_page_fault_event
alloc_uar_out create_eq_out destroy_eq_in create_cq_out create_qp_out create_mkey_out create_srq_out alloc_pd_out
alloc_xrcd_out xrc_srqc dctc create_dct_in query_dct_out alloc_q_counter_out dealloc_q_counter_in query_q_counter_in query_q_counter_out
xrqc tag_matching_topology_context create_xrq_in query_xrq_out create_psv_in create_psv_out destroy_psv_in
wq sqc rqc modify_sq_in query_sq_out tisc create_tis_in tirc rx_hash_field_select modify_tir_in modify_tir_bitmask rqtc modify_rqt_in rqt_bitmask
create_flow_table_in flow_table_context create_flow_group_in destroy_flow_group_in fte_match_set_lyr_2_4 set_fte_in flow_context dest_format_struct
delete_fte_in set_flow_table_root_in query_vport_counter_out per_protocol_networking_offload_caps flow_table_nic_cap flow_table_prop_layout
flow_table_fields_supported'
# device.h and qp.h of the kernel, mlx5dv.h and wqe.h of rdma-core: plain C.
kernel='mlx5_init_seg mlx5_cmd_layout mlx5_cmd_prot_block mlx5_wqe_umr_ctrl_seg'
user='mlx5_cqe64 mlx5_wqe_ctrl_seg mlx5_wqe_raddr_seg mlx5_wqe_atomic_seg mlx5_wqe_data_seg mlx5_wqe_srq_next_seg mlx5_wqe_av
mlx5_wqe_xrc_seg mlx5_wqe_masked_atomic_seg mlx5_wqe_mkey_context_seg mlx5_wqe_eth_seg mlx5_wqe_tm_seg mlx5_tm_cqe mlx5_wqe_set_psv_seg mlx5_bsf_inl mlx5_sigerr_cqe'

# Structures within others, in wqe.h, and their members.
nested='mlx5_bsf_basic:bsf_size_sbs,check_byte_mask,wire,mem,w_bfs_psv,m_bfs_psv
mlx5_bsf_ext:t_init_gen_pro_size,rsvd_epi_size,w_tfs_psv,m_tfs_psv'
# Capabilities that rdma-core's mlx5_ifc.h has, and the kernel's has not.
capabilities='sig_crc32c sig_block_4048 sigerr_domain_and_sig_type'

# definition FILE STRUCTURE: its text.
definition() {
    sed -n "/^struct $2 {/,/^}/p" "$1"
}
# members FILE STRUCTURE: name and array part of each named member.
members() {
    definition "$1" "$2" | sed -n 's/^\t\+\([a-z_]*[a-z0-9_]* [a-z0-9_]*\|[a-z0-9_]*\)[ \t]\+\([A-Za-z0-9_]*\)\(\[.*\)\?;.*/\2 \3/p' |
        grep -v -e '^reserved' -e '^rsvd' -e '^tm_cqe' -e '^tmh' -e '^inseg' -e '^lro' -e '^shampo' -e '^key ' -e '^qkey ' -e '^dc_key ' || :
}
# print STRUCTURE TYPE MEMBER ARRAY UNIT: a statement that prints one line.
print() {
    size="sizeof(((struct $2 *)0)->$3)"
    case $4 in '[]'*) size=0 ;; esac
    printf 'P(%s, %s, offsetof(struct %s, %s) * %s, %s * %s);\n' "$1" "$3" "$2" "$3" "$5" "$size" "$5"
}

{
    cat << 'C'
#include <stdint.h>
#include <stddef.h>
#include <stdio.h>
#define BIT(n) (1u << (n))
#define BIT_ULL(n) (1ull << (n))
#define DECLARE_FLEX_ARRAY(type, name) type name[1]
#define ETHERNET_LL_SIZE 6
#define MLX5_CMD_DATA_BLOCK_SIZE 512
#define P(s, f, o, w) printf(#s " " #f " %zu %zu\n", (size_t)(o), (size_t)(w))
typedef uint8_t u8;
typedef uint16_t __be16;
typedef uint32_t __be32;
typedef uint64_t __be64;
union mlx5_wqe_umr_inline_seg { char c; };
C
    printf '#include "%s"\n' "$linux/include/linux/mlx5/mlx5_ifc.h"
    definition "$linux/include/linux/mlx5/driver.h" health_buffer
    definition "$linux/include/linux/mlx5/device.h" health_buffer
    for name in $kernel; do definition "$linux/include/linux/mlx5/device.h" "$name"; definition "$linux/include/linux/mlx5/qp.h" "$name"; done
    for name in $user; do
        for file in mlx5dv.h wqe.h cq.c; do definition "$rdma/providers/mlx5/$file" "$name" | grep -v -e ' tm_cqe;' -e ibv_tmh || :; done
    done
    definition "$rdma/providers/mlx5/wqe.h" mlx5_bsf
    printf 'int main(void) {\n'
    for name in $ifc; do
        members "$linux/include/linux/mlx5/mlx5_ifc.h" "mlx5_ifc_${name}_bits" |
            while read -r field array; do print "$name" "mlx5_ifc_${name}_bits" "$field" "$array" 1; done
    done
    for name in $kernel; do
        for file in device.h qp.h; do
            members "$linux/include/linux/mlx5/$file" "$name" | while read -r field array; do print "$name" "$name" "$field" "$array" 8; done
        done
    done
    for name in $user; do
        for file in mlx5dv.h wqe.h cq.c; do
            members "$rdma/providers/mlx5/$file" "$name" | while read -r field array; do print "$name" "$name" "$field" "$array" 8; done
        done
    done
    for entry in $nested; do
        name=${entry%%:*}
        for field in $(printf %s "${entry#*:}" | tr , ' '); do print "$name" "$name" "$field" '' 8; done
    done
    printf 'return 0; }\n'
} > "$dir/layout.c"
gcc -w -o "$dir/layout" "$dir/layout.c"
{
    printf '#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#define u8 uint8_t\n'
    printf '#define P(s, f, o, w) printf(#s " " #f " %%zu %%zu\\n", (size_t)(o), (size_t)(w))\n'
    printf '#include "%s"\nint main(void) {\n' "$rdma/providers/mlx5/mlx5_ifc.h"
    for field in $capabilities; do print cmd_hca_cap mlx5_ifc_cmd_hca_cap_bits "$field" '' 1; done
    printf 'return 0; }\n'
} > "$dir/capabilities.c"
gcc -w -o "$dir/capabilities" "$dir/capabilities.c"

printf '# Made by layout.sh from the headers of Linux 6.12 and rdma-core 56.1.\n'
"$dir/layout"
"$dir/capabilities"
