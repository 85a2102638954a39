// Marks what the run-length stage writes for each code (SpecKV Algorithm 2, line 15; the frame's
// rule in crates/codec/src/speckv.rs): a code that is not zero is a byte, `0, n` is a run of n + 1
// zeros, and a run has at most 256.
//
// A run's token is written at its last zero. Lane 31 does not know whether its run goes on, so a
// beat waits for the next one, or leaves at once if it is the last of its page.
//
// Interface: beats of 32 codes with a count in; the beat with marks out: `literal` lanes are a
// byte, `ends` lanes are `0, length`. With `raw`, which stays for a page, all codes are literals.
// Latency 2 cycles, initiation interval 1.
module run_mark #(
    parameter int U = 1
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         raw,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [255:0] s_codes,
    input  logic [5:0]   s_count,
    input  logic         s_last,
    input  logic [U-1:0] s_user,
    output logic         m_valid,
    input  logic         m_ready,
    output logic [255:0] m_codes,
    output logic [31:0]  m_literal,
    output logic [31:0]  m_ends,
    output logic [255:0] m_lengths,
    output logic         m_last,
    output logic [U-1:0] m_user
);
  logic held, last, held_raw, fire, next_is_zero;
  logic [255:0] codes;
  logic [5:0] count;
  logic [U-1:0] user;
  logic [31:0] zero, used;
  // Zeros so far in a run that reaches the beat's end, modulo 256.
  logic [7:0] carry;

  assign next_is_zero = s_codes[7:0] == 8'd0;
  assign fire = held && (last || s_valid) && (!m_valid || m_ready);
  assign s_ready = !held || fire;

  for (genvar i = 0; i < 32; i++) begin : g_zero
    assign used[i] = 6'(i) < count;
    assign zero[i] = used[i] && !held_raw && codes[i*8+:8] == 8'd0;
  end

  // Row k holds the number of zeros that end at each lane, up to 2^k.
  for (genvar k = 0; k <= 5; k++) begin : g_row
    logic [32*6-1:0] zeros;
    for (genvar i = 0; i < 32; i++) begin : g_lane
      if (k == 0) begin : g_in
        assign zeros[i*6+:6] = {5'd0, zero[i]};
      end else if (i >= (1 << (k - 1))) begin : g_add
        assign zeros[i*6+:6] = g_row[k-1].zeros[i*6+:6]
            + (g_row[k-1].zeros[i*6+:6] == 6'(1 << (k - 1)) ? g_row[k-1].zeros[(i-(1<<(k-1)))*6+:6] : 6'd0);
      end else begin : g_pass
        assign zeros[i*6+:6] = g_row[k-1].zeros[i*6+:6];
      end
    end
  end

  logic [255:0] lengths;
  logic [31:0] ends;
  logic [7:0] run_at_end;

  for (genvar i = 0; i < 32; i++) begin : g_end
    logic [5:0] here;
    logic [7:0] run;
    logic goes_on;
    assign here = g_row[5].zeros[i*6+:6];
    // A run that fills the beat so far began before it.
    assign run = {2'd0, here} + (here == 6'(i + 1) ? carry : 8'd0);
    if (i < 31) begin : g_inner
      assign goes_on = zero[i+1];
    end else begin : g_outer
      assign goes_on = !last && next_is_zero;
      assign run_at_end = zero[31] ? run : 8'd0;
    end
    assign ends[i] = zero[i] && (!goes_on || run == 8'd0);
    assign lengths[i*8+:8] = run - 8'd1;
  end

  always_ff @(posedge clk) begin
    if (m_valid && m_ready) m_valid <= 1'b0;
    if (fire) begin
      m_valid <= 1'b1;
      m_codes <= codes;
      m_literal <= used & ~zero;
      m_ends <= ends;
      m_lengths <= lengths;
      m_last <= last;
      m_user <= user;
      carry <= last ? 8'd0 : run_at_end;
      held <= 1'b0;
    end
    if (s_valid && s_ready) begin
      held <= 1'b1;
      codes <= s_codes;
      count <= s_count;
      last <= s_last;
      user <= s_user;
      held_raw <= raw;
    end
    if (rst) begin
      held <= 1'b0;
      m_valid <= 1'b0;
      carry <= '0;
    end
  end
endmodule
