// SpecKV's decompression pipeline (SpecKV §3.5.3): header, runs, sums, dequantizer. Its input is
// the payload of a frame of crates/codec/src/speckv.rs with the steps 1 or 2.
//
// Interface: beats of 64 bytes with a count in, the last of a page marked; beats of 32 halves or
// bfloats (`bf16`) with a count out, `[head][token][channel]`. `m_error` in the last beat: the payload is invalid, and
// the page undefined. `dim`, 32 or more, `values`, 1 or more, and `bf16` stay while pages are inside.
// Latency 13 cycles from a beat to the first halves that it completes. Initiation interval: that
// of run_expand.sv; a page takes one cycle for its header.
module speckv_decode (
    input  logic         clk,
    input  logic         rst,
    input  logic         bf16,
    input  logic [15:0]  dim,
    input  logic [31:0]  values,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [511:0] s_data,
    input  logic [6:0]   s_count,
    input  logic         s_last,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [511:0] m_data,
    output logic [5:0]   m_count,
    output logic         m_last,
    output logic         m_error
);
  logic [511:0] window;
  logic [6:0] avail, take;
  logic ends, drop, unused_more;

  byte_unpack unpack (
      .clk,
      .rst,
      .s_valid,
      .s_ready,
      .s_data,
      .s_count,
      .s_last,
      .window,
      .avail,
      .ends,
      .more(unused_more),
      .take,
      .drop
  );

  logic unused;
  assign unused = ^window[511:256];

  // The header, then chunks.
  logic body, raw, bad, c_valid, c_ready, c_last, wrong;
  logic [31:0] scale, new_scale;
  logic [5:0] c_count;

  assign new_scale = window[39:8];
  // An unknown step, a negative scale, one that is not finite, or no whole header.
  assign wrong = avail < 7'd5 || (window[7:0] != 8'd1 && window[7:0] != 8'd2)
      || new_scale[30:23] == 8'd255 || (new_scale[31] && new_scale[30:0] != 31'd0);
  assign c_valid = body && (bad || ends || avail >= 7'd32);
  assign c_last = bad || (ends && avail <= 7'd32);
  assign c_count = (avail >= 7'd32) ? 6'd32 : avail[5:0];

  always_comb begin
    take = '0;
    drop = 1'b0;
    if (!body) begin
      if (ends || avail >= 7'd5) take = (avail < 7'd5) ? avail : 7'd5;
    end else if (c_valid && c_ready) begin
      take = {1'b0, c_count};
      drop = c_last;
    end
  end

  always_ff @(posedge clk) begin
    if (!body && (ends || avail >= 7'd5)) begin
      body <= 1'b1;
      raw <= window[7:0] == 8'd1;
      scale <= new_scale;
      bad <= wrong;
    end
    if (c_valid && c_ready && c_last) body <= 1'b0;
    if (rst) body <= 1'b0;
  end

  logic x_valid, x_ready, x_last, x_error, en;
  logic [255:0] x_codes;
  logic [5:0] x_count;
  logic [31:0] x_scale;

  run_expand #(
      .U(32)
  ) expand (
      .clk,
      .rst,
      .s_valid(c_valid),
      .s_ready(c_ready),
      .s_bytes(window[255:0]),
      .s_count(c_count),
      .s_raw(raw),
      .s_last(c_last),
      .s_bad(bad),
      .s_values(values),
      .s_user(scale),
      .m_valid(x_valid),
      .m_ready(x_ready),
      .m_codes(x_codes),
      .m_count(x_count),
      .m_last(x_last),
      .m_error(x_error),
      .m_user(x_scale)
  );

  // Sums and values: a pipeline of six stages that moves as one.
  logic d_valid, d_last, d_error;
  logic [255:0] d_codes;
  logic [5:0] d_count;
  logic [31:0] d_scale;
  logic [36:0] open_scale;

  assign en = !m_valid || m_ready;
  assign x_ready = en;

  delta_dec #(
      .U(39)
  ) integrate (
      .clk,
      .rst,
      .en,
      .dim,
      .s_valid(x_valid),
      .s_codes(x_codes),
      .s_last(x_last),
      .s_user({x_error, x_count, x_scale}),
      .m_valid(d_valid),
      .m_codes(d_codes),
      .m_last(d_last),
      .m_user({d_error, d_count, d_scale})
  );
  from_f32 opening (
      .single(d_scale),
      .open(open_scale)
  );
  for (genvar i = 0; i < 32; i++) begin : g_lane
    dequant_lane dequantizer (
        .clk,
        .en,
        .bf16,
        .code(d_codes[i*8+:8]),
        .scale(open_scale),
        .value(m_data[i*16+:16])
    );
  end

  logic [3:0] valid, last, error;
  logic [23:0] counts;
  always_ff @(posedge clk) begin
    if (en) begin
      valid  <= {valid[2:0], d_valid};
      last   <= {last[2:0], d_last};
      error  <= {error[2:0], d_error};
      counts <= {counts[17:0], d_count};
    end
    if (rst) valid <= '0;
  end
  assign m_valid = valid[3];
  assign m_last  = last[3];
  assign m_error = error[3];
  assign m_count = counts[23:18];
endmodule
