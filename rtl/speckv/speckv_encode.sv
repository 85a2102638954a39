// SpecKV's compression pipeline (SpecKV §3.5.2, Algorithm 2): page maximum, scale, quantizer,
// differences, zero runs, bytes. Its output is the payload of a frame of crates/codec/src/speckv.rs
// with the steps 1 or 2.
//
// A page is stored twice: its halves until the scale is known, and its differences until it is
// known whether runs shorten it.
//
// Interface: beats of 32 halves or bfloats (`bf16`) with a count in, `[head][token][channel]`, the
// last of a page marked; beats of 64 bytes with a count out. `m_bad` in the last beat: the page has
// values that are not finite, or no scale (scale.sv), and no payload. `dim` is 32 or more. It and
// `bf16` stay while pages are inside.
// Latency from a page's first beat to its first: 57 cycles and two for each beat of halves.
// Initiation interval 1 within a page of at most DEPTH beats; a page takes its beats and one cycle.
module speckv_encode #(
    parameter int DEPTH = 1024
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         bf16,
    input  logic [15:0]  dim,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [5:0]   s_count,
    input  logic         s_last,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic [6:0]   m_count,
    output logic         m_last,
    output logic         m_bad
);
  // The maximum, and the scale from it, while the page is stored.
  logic max_valid, max_ready, p_valid, p_ready, p_last, k_valid, k_ready, k_bad;
  logic [14:0] max_value;
  logic [511:0] p_data;
  logic [5:0] p_count;
  logic [36:0] k_scale, k_inverse;

  page_max maximum (
      .clk,
      .rst,
      .s_valid,
      .s_ready,
      .s_data,
      .s_count,
      .s_last,
      .m_valid(p_valid),
      .m_ready(p_ready),
      .m_data (p_data),
      .m_count(p_count),
      .m_last (p_last),
      .max_valid,
      .max_ready,
      .max_value
  );
  scale scaling (
      .clk,
      .rst,
      .bf16,
      .s_valid(max_valid),
      .s_ready(max_ready),
      .s_max(max_value),
      .m_valid(k_valid),
      .m_ready(k_ready),
      .m_scale(k_scale),
      .m_inverse(k_inverse),
      .m_bad(k_bad)
  );

  logic h_valid, h_ready, h_last, h_bad;
  logic [511:0] h_data;
  logic [5:0] h_count;
  logic [31:0] k_single, h_scale;
  logic [36:0] h_inverse;

  to_f32 closing (
      .open(k_scale),
      .single(k_single)
  );
  logic unused_first;
  page_fifo #(
      .W(518),
      .DEPTH(DEPTH),
      .T(70)
  ) halves (
      .clk,
      .rst,
      .s_valid(p_valid),
      .s_ready(p_ready),
      .s_data({p_count, p_data}),
      .s_last(p_last),
      .c_valid(k_valid),
      .c_ready(k_ready),
      .c_tag({k_bad, k_single, k_inverse}),
      .m_valid(h_valid),
      .m_ready(h_ready),
      .m_data({h_count, h_data}),
      .m_first(unused_first),
      .m_last(h_last),
      .m_tag({h_bad, h_scale, h_inverse})
  );

  // Codes and differences: a pipeline of five stages that moves as one.
  logic en, go, q_ready, d_valid, fifo_ready;
  logic [255:0] codes, d_codes;
  logic [3:0] valid;
  logic [4:0] last;
  logic [5:0] count[0:4];

  assign en = !d_valid || fifo_ready;
  // A page's last beat also needs a place for its scale.
  assign go = h_valid && (!h_last || q_ready);
  assign h_ready = en && (!h_last || q_ready);

  for (genvar i = 0; i < 32; i++) begin : g_lane
    quant_lane quantizer (
        .clk,
        .en,
        .bf16,
        .value(h_data[i*16+:16]),
        .inverse(h_inverse),
        .code(codes[i*8+:8])
    );
  end
  delta_enc differences (
      .clk,
      .rst,
      .en,
      .dim,
      .s_valid(valid[3]),
      .s_codes(codes),
      .s_last (last[3]),
      .m_valid(d_valid),
      .m_codes(d_codes)
  );

  always_ff @(posedge clk) begin
    if (en) begin
      valid <= {valid[2:0], go};
      last  <= {last[3:0], h_last};
    end
    if (rst) valid <= '0;
  end
  for (genvar k = 0; k < 5; k++) begin : g_count
    logic [5:0] count_q;
    always_ff @(posedge clk) if (en) count_q <= (k == 0) ? h_count : count[(k == 0) ? 0 : k-1];
    assign count[k] = count_q;
  end

  // The page's steps, from the bytes that runs would take.
  logic counted, q_valid, q_bad, r_valid, r_runs, commit;
  logic [31:0] run_bytes, values, q_scale;
  logic unused_queue;
  logic [2:0] unused_level_a, unused_level_b;

  run_count counter (
      .clk,
      .rst,
      .s_valid(d_valid && fifo_ready),
      .s_codes(d_codes),
      .s_count(count[4]),
      .s_last(last[4]),
      .done(counted),
      .bytes(run_bytes),
      .values
  );
  // Each counted page has its scale in the other queue, so this queue is never full.
  fifo #(
      .W(1)
  ) choices (
      .clk,
      .rst,
      .s_valid(counted),
      .s_ready(unused_queue),
      .s_data(run_bytes < values),
      .m_valid(r_valid),
      .m_ready(q_valid && commit),
      .m_data(r_runs),
      .level(unused_level_a)
  );
  fifo #(
      .W(33)
  ) scales (
      .clk,
      .rst,
      .s_valid(h_valid && h_ready && h_last),
      .s_ready(q_ready),
      .s_data({h_bad, h_scale}),
      .m_valid(q_valid),
      .m_ready(r_valid && commit),
      .m_data({q_bad, q_scale}),
      .level(unused_level_b)
  );

  logic e_valid, e_ready, e_first, e_last, e_bad, e_runs;
  logic [255:0] e_codes;
  logic [5:0] e_count;
  logic [31:0] e_scale;

  page_fifo #(
      .W(262),
      .DEPTH(DEPTH),
      .T(34)
  ) changes (
      .clk,
      .rst,
      .s_valid(d_valid),
      .s_ready(fifo_ready),
      .s_data({count[4], d_codes}),
      .s_last(last[4]),
      .c_valid(r_valid && q_valid),
      .c_ready(commit),
      .c_tag({q_bad, r_runs, q_scale}),
      .m_valid(e_valid),
      .m_ready(e_ready),
      .m_data({e_count, e_codes}),
      .m_first(e_first),
      .m_last(e_last),
      .m_tag({e_bad, e_runs, e_scale})
  );

  run_emit emit (
      .clk,
      .rst,
      .s_valid(e_valid),
      .s_ready(e_ready),
      .s_codes(e_codes),
      .s_count(e_count),
      .s_first(e_first),
      .s_last(e_last),
      .s_bad(e_bad),
      .s_runs(e_runs),
      .s_scale(e_scale),
      .m_valid,
      .m_ready,
      .m_data,
      .m_count,
      .m_last,
      .m_bad
  );
endmodule
