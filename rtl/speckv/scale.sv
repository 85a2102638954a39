// Scale of a page and its inverse from the maximum: max / 127 and 127 / max, both rounded as
// singles (SpecKV Algorithm 2, lines 3 and 6, without the second factor of 127).
//
// Interface: maxima of 15 bits in, valid and ready; scale and inverse out as open numbers
// (from_f16.sv), zero for a page of zeros; `bad` if the maximum is not finite, or the scale is
// below 2^-126. Only bfloats have one; an inverse that is too large for a single has such a scale.
// Latency 28 cycles, initiation interval 29: a page of 928 values or more hides it.
module scale (
    input  logic        clk,
    input  logic        rst,
    input  logic        bf16,
    input  logic        s_valid,
    output logic        s_ready,
    input  logic [14:0] s_max,
    output logic        m_valid,
    input  logic        m_ready,
    output logic [36:0] m_scale,
    output logic [36:0] m_inverse,
    output logic        m_bad
);
  logic [36:0] largest, top_code;
  logic start, done, busy, infinite;

  from_16 open_max (
      .bf16,
      .value({1'b0, s_max}),
      .open(largest)
  );
  from_int open_top (
      .value(9'd127),
      .open (top_code)
  );
  assign s_ready = !busy && !m_valid;
  assign start = s_valid && s_ready;
  assign m_bad = infinite || (!m_scale[35] && $signed(m_scale[33:24]) < -10'sd126);

  fdiv divide_down (
      .clk,
      .rst,
      .start,
      .a(largest),
      .b(top_code),
      .done,
      .y(m_scale)
  );
  logic unused;
  fdiv divide_up (
      .clk,
      .rst,
      .start,
      .a(top_code),
      .b(largest),
      .done(unused),
      .y(m_inverse)
  );

  always_ff @(posedge clk) begin
    if (start) begin
      busy  <= 1'b1;
      infinite <= largest[36];
    end
    if (done) begin
      busy <= 1'b0;
      m_valid <= 1'b1;
    end
    if (m_valid && m_ready) m_valid <= 1'b0;
    if (rst) begin
      busy <= 1'b0;
      m_valid <= 1'b0;
    end
  end
endmodule
