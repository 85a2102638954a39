// The whole engine at its memory (SpecKV §3.5.1; Oaken §5.2): pages become frames in memory and
// frames pages, by SpecKV or QPack, and tokens become Oaken's pages. All share one address
// translation unit, sixteen channels, and registers.
//
// Interface: `c_` a page in, whose frame goes to the pieces of a `p_` list; `d_` its record: bytes of
// the frame, 0 if the page has none, and `d_bad`, as in dma_write.sv. `q_` lists of frames, whose
// pages leave by `y_`; tuser in the last beat: the frame is invalid, or a part of it has no
// translation. `o_` are Oaken's tokens, `f_` its free pages, `l_` asks for its page, which leaves by
// `k_` (oaken_engine.sv). `m_` and `r_` are requests and answers of the channels (memory_path.sv).
// Registers are those of axi_lite_regs.sv.
// Latency and initiation interval: those of cache_engine.sv, memory_path.sv and oaken_engine.sv, one
// behind the other.
module cache_system #(
    parameter int DEPTH = 1024
) (
    input  logic          clk,
    input  logic          rst,
    input  logic          aw_valid,
    output logic          aw_ready,
    input  logic [7:0]    aw_address,
    input  logic          w_valid,
    output logic          w_ready,
    input  logic [31:0]   w_data,
    output logic          b_valid,
    input  logic          b_ready,
    input  logic          ar_valid,
    output logic          ar_ready,
    input  logic [7:0]    ar_address,
    output logic          r_valid,
    input  logic          r_ready,
    output logic [31:0]   r_data,
    input  logic          c_valid,
    output logic          c_ready,
    input  logic [511:0]  c_tdata,
    input  logic [63:0]   c_tkeep,
    input  logic          c_tlast,
    input  logic          p_valid,
    output logic          p_ready,
    input  logic [38:0]   p_address,
    input  logic [15:0]   p_beats,
    input  logic          p_last,
    output logic          d_valid,
    input  logic          d_ready,
    output logic [31:0]   d_bytes,
    output logic          d_bad,
    input  logic          q_valid,
    output logic          q_ready,
    input  logic [38:0]   q_address,
    input  logic [15:0]   q_beats,
    input  logic [6:0]    q_bytes,
    input  logic          q_last,
    output logic          y_valid,
    input  logic          y_ready,
    output logic [511:0]  y_tdata,
    output logic [63:0]   y_tkeep,
    output logic          y_tlast,
    output logic          y_tuser,
    input  logic          o_valid,
    output logic          o_ready,
    input  logic [511:0]  o_tdata,
    input  logic          o_tlast,
    input  logic          f_valid,
    output logic          f_ready,
    input  logic [51:0]   f_page,
    input  logic          l_valid,
    output logic          l_ready,
    output logic          k_valid,
    input  logic          k_ready,
    output logic [511:0]  k_tdata,
    output logic          k_tlast,
    output logic          k_tuser,
    output logic [15:0]   mem_valid,
    input  logic [15:0]   mem_ready,
    output logic [1023:0] mem_address,
    output logic [15:0]   mem_write,
    output logic [8191:0] mem_data,
    output logic [127:0]  mem_tag,
    input  logic [15:0]   ans_valid,
    output logic [15:0]   ans_ready,
    input  logic [127:0]  ans_tag,
    input  logic [8191:0] ans_data
);
  logic [51:0] root;
  logic [8:0] alpha;
  logic flush, clear;
  logic [31:0] misses, rejected;
  logic [67:0] weights;
  logic [127:0] thresholds;
  logic [15:0] row;
  logic [6:0] tokens;
  logic full;

  // Frames on their way to memory and from it.
  logic z_valid, z_ready, z_last, unused_declined, x_valid, x_ready, x_last, x_fault, room;
  logic [511:0] z_data, x_data;
  logic [63:0] z_keep, x_keep;
  logic [6:0] z_count, x_count;
  logic e_valid, e_ready, e_bad;
  cache_engine #(
      .DEPTH(DEPTH)
  ) engine (
      .clk,
      .rst,
      .aw_valid,
      .aw_ready,
      .aw_address,
      .w_valid,
      .w_ready,
      .w_data,
      .b_valid,
      .b_ready,
      .ar_valid,
      .ar_ready,
      .ar_address,
      .r_valid,
      .r_ready,
      .r_data,
      .root,
      .alpha,
      .flush,
      .misses,
      .weights,
      .thresholds,
      .row,
      .clear,
      .tokens({full, 24'd0, tokens}),
      .rejected,
      .c_valid,
      .c_ready,
      .c_tdata,
      .c_tkeep,
      .c_tlast,
      .z_valid,
      .z_ready,
      .z_tdata(z_data),
      .z_tkeep(z_keep),
      .z_tlast(z_last),
      .z_tuser(unused_declined),
      .x_valid(x_valid && room),
      .x_ready,
      .x_tdata(x_data),
      .x_tkeep(x_keep),
      .x_tlast(x_last),
      .y_valid(e_valid),
      .y_ready(e_ready),
      .y_tdata,
      .y_tkeep,
      .y_tlast,
      .y_tuser(e_bad)
  );
  keep_count z_bytes (
      .keep (z_keep),
      .count(z_count)
  );
  for (genvar i = 0; i < 64; i++) begin : g_keep
    assign x_keep[i] = 7'(i) < x_count;
  end

  // Zeros stand for a part without translation. Its frame is refused, whatever its checksum.
  logic faults, x_fires;
  assign x_fires = x_valid && x_ready && room;
  always_ff @(posedge clk) begin
    if (x_fires) faults <= !x_last && (faults || x_fault);
    if (rst) faults <= 1'b0;
  end
  verdict refusing (
      .clk,
      .rst,
      .known(x_fires && x_last),
      .bad(faults || x_fault),
      .room,
      .s_valid(e_valid),
      .s_ready(e_ready),
      .s_last(y_tlast),
      .s_bad(e_bad),
      .m_valid(y_valid),
      .m_ready(y_ready),
      .m_bad(y_tuser)
  );

  logic h_valid, h_ready, h_write, g_valid, g_ready;
  logic [63:0] h_address;
  logic [511:0] h_data, g_data;
  logic [5:0] h_tag, g_tag;
  oaken_engine oaken (
      .clk,
      .rst,
      .clear,
      .bf16(row[15]),
      .thresholds,
      .row_beats(row[7:0]),
      .heads(row[11:8]),
      .s_valid(o_valid),
      .s_ready(o_ready),
      .s_data(o_tdata),
      .s_last(o_tlast),
      .f_valid,
      .f_ready,
      .f_page,
      .l_valid,
      .l_ready,
      .m_valid(k_valid),
      .m_ready(k_ready),
      .m_data(k_tdata),
      .m_last(k_tlast),
      .m_error(k_tuser),
      .h_valid,
      .h_ready,
      .h_address,
      .h_write,
      .h_data,
      .h_tag,
      .g_valid,
      .g_ready,
      .g_tag,
      .g_data,
      .tokens,
      .declined(rejected),
      .full
  );

  memory_path path (
      .clk,
      .rst,
      .flush,
      .root,
      .alpha,
      .weights,
      .misses,
      .p_valid,
      .p_ready,
      .p_address,
      .p_beats,
      .p_last,
      .s_valid(z_valid),
      .s_ready(z_ready),
      .s_data(z_data),
      .s_count(z_count),
      .s_last(z_last),
      .d_valid,
      .d_ready,
      .d_bytes,
      .d_bad,
      .q_valid,
      .q_ready,
      .q_address,
      .q_beats,
      .q_bytes,
      .q_last,
      .y_valid(x_valid),
      .y_ready(x_ready && room),
      .y_data(x_data),
      .y_count(x_count),
      .y_last(x_last),
      .y_fault(x_fault),
      .h_valid,
      .h_ready,
      .h_address,
      .h_write,
      .h_data,
      .h_tag,
      .g_valid,
      .g_ready,
      .g_tag,
      .g_data,
      .m_valid(mem_valid),
      .m_ready(mem_ready),
      .m_address(mem_address),
      .m_write(mem_write),
      .m_data(mem_data),
      .m_tag(mem_tag),
      .r_valid(ans_valid),
      .r_ready(ans_ready),
      .r_tag(ans_tag),
      .r_data(ans_data)
  );
  logic unused;
  assign unused = ^row[14:12];
endmodule
