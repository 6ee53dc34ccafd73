/*
 * Prints work requests and completions as rdma-core's headers lay them out, to
 * hold the Rust code against: one line per vector, its name and its bytes.
 *
 *   gcc -o vectors vectors.c && ./vectors > vectors.txt     (libibverbs-dev)
 */
#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <stdio.h>
#include <string.h>

static unsigned char wqe[1024];
static unsigned char *end;

static void print(const char *name, const void *bytes, size_t len)
{
	printf("%s ", name);
	for (size_t i = 0; i < len; i++)
		printf("%02x", ((const unsigned char *)bytes)[i]);
	printf("\n");
}

static void *segment(size_t len)
{
	void *at = end;

	end += len;
	return at;
}

static void begin(void)
{
	memset(wqe, 0, sizeof(wqe));
	end = wqe + sizeof(struct mlx5_wqe_ctrl_seg);
}

static void finish_modified(const char *name, uint16_t index, uint8_t opcode, uint8_t modifier, uint8_t flags,
			    uint32_t imm)
{
	mlx5dv_set_ctrl_seg((void *)wqe, index, opcode, modifier, 0xabcdef, flags, (end - wqe) / 16, 0, imm);
	print(name, wqe, end - wqe);
}

static void finish(const char *name, uint16_t index, uint8_t opcode, uint8_t flags, uint32_t imm)
{
	finish_modified(name, index, opcode, 0, flags, imm);
}

static void remote(void)
{
	struct mlx5_wqe_raddr_seg *seg = segment(sizeof(*seg));

	seg->raddr = htobe64(0x1122334455667788);
	seg->rkey = htobe32(0x99aabbcc);
}

static void data(uint32_t len, uint32_t lkey, uint64_t addr)
{
	mlx5dv_set_data_seg(segment(sizeof(struct mlx5_wqe_data_seg)), len, lkey, addr);
}

static void in_line(const char *text)
{
	size_t len = strlen(text);
	struct mlx5_wqe_inl_data_seg *seg = segment((sizeof(*seg) + len + 15) / 16 * 16);

	seg->byte_count = htobe32(len | MLX5_INLINE_SEG);
	memcpy(seg + 1, text, len);
}

static void destination(uint64_t key, uint8_t ext, uint32_t grh)
{
	uint8_t mac[6] = { 0 }, gid[16];

	for (int i = 0; i < 16; i++)
		gid[i] = 0xf0 + i;
	mlx5dv_set_dgram_seg((void *)end, key, 0x000123, ext, 0x35, 0x07, 0xbeef, mac, 0x1c, 64,
			     grh, gid);
	end += ext ? 48 : 16;
}

static void datagram(uint8_t ext, uint32_t grh)
{
	/* The Q_Key is the first half of the key, as libmlx5 sets it. */
	destination(0x80010000ull << 32, ext, grh);
}

/* What is done to an IP packet, behind 16 bytes that the kernel's driver leaves empty. */
static void packet(uint8_t flags, uint16_t mss, const char *headers)
{
	struct mlx5_wqe_eth_seg *seg;
	size_t len = strlen(headers);

	segment(16);
	seg = segment((offsetof(struct mlx5_wqe_eth_seg, inline_hdr_start) + len + 15) / 16 * 16);
	mlx5dv_set_eth_seg(seg, flags, mss, len, (uint8_t *)headers);
}

static void requests(void)
{
	struct mlx5_wqe_atomic_seg *atomic;
	struct mlx5_wqe_umr_ctrl_seg *update;
	struct mlx5_wqe_mkey_context_seg *key;

	begin();
	data(0x1000, 0x1234, 0x7f0000001000);
	data(0x20, 0x5678, 0x7f0000009000);
	finish("send", 7, MLX5_OPCODE_SEND, MLX5_WQE_CTRL_CQ_UPDATE, 0);

	begin();
	in_line("thirteen byte");
	finish("send_imm_inline", 8, MLX5_OPCODE_SEND_IMM, MLX5_WQE_CTRL_SOLICITED, htobe32(0xcafe0001));

	begin();
	in_line("a first stretch of inline data");
	in_line("and another");
	finish("send_inval_inline_twice", 9, MLX5_OPCODE_SEND_INVAL, MLX5_WQE_CTRL_FENCE, htobe32(0x00000a42));

	begin();
	remote();
	data(64, 0x1234, 0x1000);
	finish("write", 0xffff, MLX5_OPCODE_RDMA_WRITE, MLX5_WQE_CTRL_CQ_UPDATE, 0);

	begin();
	remote();
	finish("write_imm_empty", 1, MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_SOLICITED,
	       htobe32(0x01020304));

	begin();
	remote();
	data(64, 0x1234, 0x1000);
	finish("read", 2, MLX5_OPCODE_RDMA_READ, MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE, 0);

	begin();
	remote();
	atomic = segment(sizeof(*atomic));
	atomic->swap_add = htobe64(0x0102030405060708);
	atomic->compare = htobe64(0x1112131415161718);
	data(8, 0x1234, 0x1008);
	finish("compare_swap", 3, MLX5_OPCODE_ATOMIC_CS, MLX5_WQE_CTRL_CQ_UPDATE, 0);

	begin();
	remote();
	atomic = segment(sizeof(*atomic));
	atomic->swap_add = htobe64(5);
	data(8, 0x1234, 0x1008);
	finish("fetch_add", 4, MLX5_OPCODE_ATOMIC_FA, 0, 0);

	begin();
	datagram(1, 1u << 30 | 2u << 20 | 0x12345);
	data(100, 0x1234, 0x1000);
	finish("datagram_global", 5, MLX5_OPCODE_SEND, MLX5_WQE_CTRL_CQ_UPDATE, 0);

	begin();
	datagram(0, 0);
	data(100, 0x1234, 0x1000);
	finish("datagram_compact", 6, MLX5_OPCODE_SEND, MLX5_WQE_CTRL_CQ_UPDATE, 0);

	begin();
	datagram(1, 0);
	packet(MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM, 0, "");
	data(100, 0x1234, 0x1000);
	finish("packet", 7, MLX5_OPCODE_SEND, MLX5_WQE_CTRL_CQ_UPDATE, 0);

	begin();
	datagram(1, 0);
	packet(MLX5_ETH_WQE_L4_CSUM, 1460, "headers, of any length");
	data(9000, 0x1234, 0x1000);
	finish("stretch", 8, MLX5_OPCODE_TSO, MLX5_WQE_CTRL_CQ_UPDATE, 0);

	begin();
	destination(0x0102030405060708, 1, 1u << 30 | 2u << 20 | 0x12345);
	remote();
	data(100, 0x1234, 0x1000);
	finish("dynamic_write", 5, MLX5_OPCODE_RDMA_WRITE, MLX5_WQE_CTRL_CQ_UPDATE, 0);

	begin();
	destination(0x0102030405060708, 0, 0);
	remote();
	atomic = segment(sizeof(*atomic));
	atomic->swap_add = htobe64(5);
	data(8, 0x1234, 0x1000);
	finish("dynamic_fetch_add_compact", 6, MLX5_OPCODE_ATOMIC_FA, MLX5_WQE_CTRL_CQ_UPDATE, 0);

	begin();
	update = segment(sizeof(*update));
	update->klm_octowords = htobe16(4);
	update->mkey_mask = htobe64(MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN | MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR |
				    MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY |
				    MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE |
				    MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE |
				    MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE);
	key = segment(sizeof(*key));
	key->access_flags = MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_LOCAL_WRITE;
	key->qpn_mkey = htobe32(0xffffff43);
	key->start_addr = htobe64(0x400000);
	key->len = htobe64(0x8000);
	data(64, 0x1234, 0x2000);
	finish("key_update", 10, MLX5_OPCODE_UMR, MLX5_WQE_CTRL_CQ_UPDATE, htobe32(0x00000a42));

	begin();
	update = segment(sizeof(*update));
	update->flags = MLX5_WQE_UMR_CTRL_FLAG_INLINE;
	update->mkey_mask = htobe64(MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE);
	key = segment(sizeof(*key));
	key->free = MLX5_WQE_MKEY_CONTEXT_FREE;
	finish("key_revoke", 11, MLX5_OPCODE_UMR, 0, htobe32(0x00000a42));
}

/* Memory windows as libmlx5 binds and invalidates them (providers/mlx5/qp.c, set_bind_wr). */
static void window(const char *name, uint8_t flags, uint64_t mask, uint32_t qpn_mkey, int bound)
{
	struct mlx5_wqe_umr_ctrl_seg *update;
	struct mlx5_wqe_mkey_context_seg *key;

	begin();
	update = segment(sizeof(*update));
	update->flags = MLX5_WQE_UMR_CTRL_FLAG_TRNSLATION_OFFSET | MLX5_WQE_UMR_CTRL_FLAG_INLINE | flags;
	update->mkey_mask = htobe64(MLX5_WQE_UMR_CTRL_MKEY_MASK_FREE | MLX5_WQE_UMR_CTRL_MKEY_MASK_MKEY | mask);
	key = segment(sizeof(*key));
	key->qpn_mkey = htobe32(qpn_mkey);
	if (bound) {
		struct mlx5_wqe_umr_klm_seg *stretch;

		update->klm_octowords = htobe16(4);
		update->mkey_mask |= htobe64(MLX5_WQE_UMR_CTRL_MKEY_MASK_LEN |
					     MLX5_WQE_UMR_CTRL_MKEY_MASK_START_ADDR |
					     MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_LOCAL_WRITE |
					     MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_READ |
					     MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_REMOTE_WRITE |
					     MLX5_WQE_UMR_CTRL_MKEY_MASK_ACCESS_ATOMIC);
		key->access_flags = MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_REMOTE_WRITE;
		key->start_addr = htobe64(0x7f0000001000);
		key->len = htobe64(0x2000);
		stretch = segment(64);
		stretch->byte_count = htobe32(0x2000);
		stretch->mkey = htobe32(0x1234);
		stretch->address = htobe64(0x7f0000001000);
	} else {
		key->free = MLX5_WQE_MKEY_CONTEXT_FREE;
	}
	finish(name, 12, MLX5_OPCODE_UMR, MLX5_WQE_CTRL_CQ_UPDATE, htobe32(0x00000a42));
}

static void windows(void)
{
	window("window_bind_1", 0, 0, 0xffffff43, 1);
	window("window_bind_2", MLX5_WQE_UMR_CTRL_FLAG_CHECK_FREE, MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN, 0xabcdef43, 1);
	window("window_unbind_1", 0, 0, 0xffffff43, 0);
	window("window_invalidate", MLX5_WQE_UMR_CTRL_FLAG_CHECK_QPN, MLX5_WQE_UMR_CTRL_MKEY_MASK_QPN, 0xffffff00, 0);
}

/*
 * What UCX writes and libibverbs does not (UCX 1.18, src/uct/ib/mlx5): the header of an active message inline and
 * its payload gathered (rc/rc_mlx5.inl, uct_rc_mlx5_txqp_dptr_post_iov; ud/ud_mlx5.c, uct_ud_mlx5_iface_post_send),
 * a flush (rc_mlx5.inl, uct_rc_mlx5_txqp_inline_post), and extended atomics, the size of their operands in the
 * modifier (rc_mlx5.inl, uct_rc_mlx5_txqp_dptr_post; ib_mlx5.h, UCT_IB_MLX5_OPMOD_EXT_ATOMIC).
 */
static void ucx(void)
{
	struct mlx5_wqe_atomic_seg *atomic;

	begin();
	in_line("twenty-six bytes of header");
	data(8230, 0x1234, 0x7f0000001000);
	data(7, 0x5678, 0x7f0000009001);
	finish("ucx_header_and_gather", 12, MLX5_OPCODE_SEND, MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_SOLICITED, 0);

	begin();
	datagram(0, 0);
	in_line("datagram");
	data(1000, 0x1234, 0x1000);
	finish("ucx_datagram", 13, MLX5_OPCODE_SEND, MLX5_WQE_CTRL_CQ_UPDATE, 0);

	begin();
	finish("ucx_flush", 14, MLX5_OPCODE_NOP, MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_FENCE, 0);

	for (int log_size = 2; log_size <= 3; log_size++) {
		begin();
		remote();
		atomic = segment(sizeof(*atomic));
		if (log_size == 3) {
			atomic->swap_add = htobe64(5);
			atomic->compare = htobe64(0x8000000080000000);
		} else {
			atomic->swap_add = htobe64(5ull << 32 | 0x80000000);
		}
		data(1 << log_size, 0x1234, 0x1008);
		finish_modified(log_size == 3 ? "ucx_masked_fetch_add_8" : "ucx_masked_fetch_add_4", 15,
				MLX5_OPCODE_ATOMIC_MASKED_FA, 8 | (log_size - 2), MLX5_WQE_CTRL_CQ_UPDATE, 0);
	}

	begin();
	remote();
	atomic = segment(sizeof(*atomic));
	atomic->swap_add = htobe64(1);
	atomic->compare = htobe64(2);
	atomic = segment(sizeof(*atomic));
	atomic->swap_add = htobe64(3);
	atomic->compare = htobe64(4);
	data(8, 0x1234, 0x1008);
	finish_modified("ucx_masked_compare_swap_8", 16, MLX5_OPCODE_ATOMIC_MASKED_CS, 9, MLX5_WQE_CTRL_CQ_UPDATE, 0);

	begin();
	remote();
	atomic = segment(sizeof(*atomic));
	atomic->swap_add = htobe64(1ull << 32 | 2);
	atomic->compare = htobe64(3ull << 32 | 4);
	data(4, 0x1234, 0x1008);
	finish_modified("ucx_masked_compare_swap_4", 17, MLX5_OPCODE_ATOMIC_MASKED_CS, 8, MLX5_WQE_CTRL_CQ_UPDATE, 0);
}

static void completions(void)
{
	struct mlx5_cqe64 cqe;
	struct mlx5_err_cqe {
		uint8_t rsvd0[32];
		__be32 srqn;
		uint8_t rsvd1[18];
		uint8_t vendor_err_synd;
		uint8_t syndrome;
		__be32 s_wqe_opcode_qpn;
		__be16 wqe_counter;
		uint8_t signature;
		uint8_t op_own;
	} *error = (void *)&cqe;

	memset(&cqe, 0, sizeof(cqe));
	cqe.byte_cnt = htobe32(4096);
	cqe.sop_drop_qpn = htobe32(MLX5_OPCODE_RDMA_READ << 24 | 0xabcdef);
	cqe.wqe_counter = htobe16(0x1234);
	cqe.timestamp = htobe64(0x0123456789abcdef);
	cqe.op_own = MLX5_CQE_REQ << 4;
	print("cqe_requester", &cqe, sizeof(cqe));

	memset(&cqe, 0, sizeof(cqe));
	cqe.srqn_uidx = htobe32(0x77);
	cqe.imm_inval_pkey = htobe32(0xcafe0001);
	cqe.byte_cnt = htobe32(13);
	cqe.sop_drop_qpn = htobe32(0xabcdef);
	cqe.wqe_counter = htobe16(5);
	cqe.timestamp = htobe64(0x0123456789abcdef);
	cqe.op_own = MLX5_CQE_RESP_SEND_IMM << 4 | 1 << 1;
	print("cqe_send_imm_shared", &cqe, sizeof(cqe));

	memset(&cqe, 0, sizeof(cqe));
	cqe.ml_path = 3;
	cqe.slid = htobe16(0xbeef);
	cqe.flags_rqpn = htobe32(1u << 28 | 5u << 24 | 0x000123);
	cqe.imm_inval_pkey = htobe32(0x8001);
	cqe.byte_cnt = htobe32(140);
	cqe.sop_drop_qpn = htobe32(0xabcdef);
	cqe.wqe_counter = htobe16(6);
	cqe.timestamp = htobe64(0x0123456789abcdef);
	cqe.op_own = MLX5_CQE_RESP_SEND << 4;
	print("cqe_datagram", &cqe, sizeof(cqe));

	cqe.hds_ip_ext = MLX5_CQE_L3_OK | MLX5_CQE_L4_OK;
	print("cqe_packet", &cqe, sizeof(cqe));

	memset(&cqe, 0, sizeof(cqe));
	error->syndrome = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;
	error->vendor_err_synd = 0x88;
	error->s_wqe_opcode_qpn = htobe32(MLX5_OPCODE_RDMA_WRITE << 24 | 0xabcdef);
	error->wqe_counter = htobe16(9);
	error->op_own = MLX5_CQE_REQ_ERR << 4 | 1 << 1;
	print("cqe_requester_error", &cqe, sizeof(cqe));

	memset(&cqe, 0, sizeof(cqe));
	error->syndrome = MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
	error->s_wqe_opcode_qpn = htobe32(0xabcdef);
	error->wqe_counter = htobe16(10);
	error->op_own = MLX5_CQE_RESP_ERR << 4 | 1 << 1;
	print("cqe_responder_flushed", &cqe, sizeof(cqe));
}

/* A change of a list of tags, as libmlx5 and UCX make it. */
static void tag_change(const char *name, uint8_t opcode, uint8_t flags, uint16_t index, int memory)
{
	struct mlx5_wqe_tm_seg *seg;

	begin();
	seg = segment(sizeof(*seg));
	seg->opcode = opcode << 4;
	seg->flags = flags;
	seg->index = htobe16(index);
	seg->sw_cnt = htobe16(0x1234);
	if (memory >= 0) {
		seg->append_tag = htobe64(0x0102030405060708);
		seg->append_mask = htobe64(0xffffffff00000000);
	}
	if (memory > 0)
		data(0x1000, 0x1234, 0x7f0000001000);
	else if (memory == 0)
		data(0, MLX5_INVALID_LKEY, 0);
	finish(name, 12, MLX5_OPCODE_TAG_MATCHING, 0, 0);
}

static void tags(void)
{
	struct mlx5_cqe64 cqe;

	tag_change("tag_append", 1, 1 << 7 | 1 << 6, 5, 1);
	tag_change("tag_append_empty", 1, 1 << 7, 5, 0);
	tag_change("tag_remove", 2, 1 << 7, 5, -1);
	tag_change("tag_sync", 0, 1 << 6, 0, -1);

	memset(&cqe, 0, sizeof(cqe));
	cqe.tmh.opcode = IBV_TMH_EAGER;
	cqe.tmh.app_ctx = htobe32(0xc0de);
	cqe.tmh.tag = htobe64(0x0102030405060708);
	cqe.srqn_uidx = htobe32(0x77);
	cqe.imm_inval_pkey = htobe32(0xcafe0001);
	cqe.app = 1;
	cqe.app_op = 0xa;
	cqe.app_info = htobe16(5);
	cqe.byte_cnt = htobe32(13);
	cqe.sop_drop_qpn = htobe32(0xabcdef);
	cqe.wqe_counter = htobe16(5);
	cqe.timestamp = htobe64(0x0123456789abcdef);
	cqe.op_own = MLX5_CQE_RESP_SEND_IMM << 4;
	print("cqe_tag_whole", &cqe, sizeof(cqe));

	memset(&cqe, 0, sizeof(cqe));
	cqe.tm_cqe.success = htobe32(MLX5_TMC_SUCCESS);
	cqe.tm_cqe.hw_phase_cnt = htobe16(0x4321);
	cqe.srqn_uidx = htobe32(0x77);
	cqe.app = 1;
	cqe.app_op = 0x6;
	cqe.app_info = htobe16(12);
	cqe.sop_drop_qpn = htobe32(0xabcdef);
	cqe.wqe_counter = htobe16(12);
	cqe.timestamp = htobe64(0x0123456789abcdef);
	cqe.op_own = MLX5_CQE_NO_PACKET << 4;
	print("cqe_tag_removed", &cqe, sizeof(cqe));
}

int main(void)
{
	requests();
	windows();
	ucx();
	completions();
	tags();
	return 0;
}
