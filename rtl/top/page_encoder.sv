// Pages to frames, by SpecKV or by QPack: guard, codec, header (SpecKV §3.5.2;
// crates/codec/src/frame.rs).
//
// Interface: beats of 64 bytes of halves or bfloats with a count of bytes in, of which a page's last is marked,
// in the codec's order: `[head][token][channel]` for SpecKV, key panels for QPack. `header` has the
// codec (1 SpecKV, 3 QPack) and the shape; `t_` reads QPack's table. Beats of a frame out; `m_bad`
// in the last beat: no frame, because of the page's kind, size or values, or it would not become
// smaller.
// Latency and initiation interval: those of the codec's encoder and of frame_write.sv together.
module page_encoder #(
    parameter int DEPTH = 1024
) (
    input  logic         clk,
    input  logic         rst,
    input  logic [127:0] header,
    output logic [15:0]  t_at,
    input  logic [191:0] t_word,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [6:0]   s_bytes,
    input  logic         s_last,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic [6:0]   m_count,
    output logic         m_last,
    output logic         m_bad
);
  logic is_qpack, bf16, q_room, supported;
  logic [15:0] dim, tokens, groups;
  logic [31:0] values, padded;
  page_shape shape (
      .clk,
      .header,
      .is_qpack,
      .bf16,
      .dim,
      .tokens,
      .groups,
      .values,
      .padded,
      .supported
  );

  logic g_valid, g_ready, g_last, g_bad, g_fires;
  logic [511:0] g_data;
  logic [5:0] g_count;
  page_guard #(
      .DEPTH(DEPTH)
  ) guard (
      .clk,
      .rst,
      .supported,
      .values(padded),
      .s_valid(s_valid && q_room),
      .s_ready(g_room),
      .s_data,
      .s_bytes,
      .s_last,
      .m_valid(g_valid),
      .m_ready(g_ready),
      .m_data (g_data),
      .m_count(g_count),
      .m_last (g_last),
      .m_bad  (g_bad)
  );
  logic g_room;
  assign s_ready = g_room && q_room;
  assign g_fires = g_valid && g_ready;

  logic k_ready, k_valid, k_last, k_bad, p_ready, p_valid, p_last, p_bad, unused_p_ready;
  logic [511:0] k_data, p_data;
  logic [6:0] k_count, p_count;
  assign g_ready = is_qpack ? p_ready : k_ready;

  speckv_encode #(
      .DEPTH(DEPTH)
  ) speckv (
      .clk,
      .rst,
      .bf16,
      .dim,
      .s_valid(g_valid && !is_qpack),
      .s_ready(k_ready),
      .s_data (g_data),
      .s_count(g_count),
      .s_last (g_last),
      .m_valid(k_valid),
      .m_ready(c_ready),
      .m_data (k_data),
      .m_count(k_count),
      .m_last (k_last),
      .m_bad  (k_bad)
  );

  logic [4:0] here;
  logic group_ends;
  qpack_walk walk (
      .clk,
      .rst,
      .dim,
      .tokens,
      .step(g_fires && is_qpack),
      .restart(g_fires && g_last),
      .index(t_at),
      .here,
      .ends(group_ends)
  );
  qpack_encode qpack (
      .clk,
      .rst,
      .bf16,
      .s_valid(g_valid && is_qpack),
      .s_ready(p_ready),
      .s_data(g_data),
      .s_tokens(here),
      .s_end(group_ends || g_last),
      .s_last(g_last),
      .p_valid(1'b1),
      .p_ready(unused_p_ready),
      .p_means(t_word[63:0]),
      .p_inverses(t_word[127:64]),
      .m_valid(p_valid),
      .m_ready(c_ready),
      .m_data(p_data),
      .m_count(p_count),
      .m_last(p_last),
      .m_bad(p_bad)
  );

  // The payload of the codec, and the guard's verdict.
  logic c_ready, f_ready, f_valid, f_last, f_bad;
  assign f_last = is_qpack ? p_last : k_last;
  verdict guarding (
      .clk,
      .rst,
      .known(g_fires && g_last),
      .bad(g_bad),
      .room(q_room),
      .s_valid(is_qpack ? p_valid : k_valid),
      .s_ready(c_ready),
      .s_last(f_last),
      .s_bad(is_qpack ? p_bad : k_bad),
      .m_valid(f_valid),
      .m_ready(f_ready),
      .m_bad(f_bad)
  );
  frame_write #(
      .DEPTH(DEPTH)
  ) framing (
      .clk,
      .rst,
      .s_header(header),
      .s_limit({values[30:0], 1'b0}),
      .s_valid(f_valid),
      .s_ready(f_ready),
      .s_data(is_qpack ? p_data : k_data),
      .s_count(is_qpack ? p_count : k_count),
      .s_last(f_last),
      .s_bad(f_bad),
      .m_valid,
      .m_ready,
      .m_data,
      .m_count,
      .m_last,
      .m_bad
  );
  logic unused;
  assign unused = ^{groups, values[31], t_word[191:128]};
endmodule
