// The grid of a group's codes in one token, from its bounds (Oaken §4.2, eq. 2 and 3; the cut is of
// crates/codec/src/oaken.rs): inverse step, step, and the first code of the upper side.
//
// FIVE says that codes have five bits. A group with `sides` is shifted; codes below `cut` are of
// rests below zero. STEP says that the step is wanted, for which a second divider is built; without
// it, `m_step` is 0.
//
// Interface: a stalling pipeline, which moves while `en`. Bounds as halves in; U bits travel beside
// them.
// Latency 34 cycles, initiation interval 1.
module oaken_grid #(
    parameter bit FIVE = 1'b1,
    parameter bit STEP = 1'b1,
    parameter int U = 1
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         en,
    input  logic         s_valid,
    input  logic         s_sides,
    input  logic [15:0]  s_least,
    input  logic [15:0]  s_most,
    input  logic [U-1:0] s_user,
    output logic         m_valid,
    output logic [36:0]  m_least,
    output logic [36:0]  m_step,
    output logic [36:0]  m_inverse,
    output logic [5:0]   m_cut,
    output logic [U-1:0] m_user
);
  localparam logic [5:0] Codes = FIVE ? 6'd32 : 6'd16;
  // Cycles until the width is there, then the quotients, then the crossing.
  localparam int Width = 4;
  localparam int Quotient = Width + 27;
  localparam int Crossing = Quotient + 2;
  localparam int Last = Crossing + 1;

  // What waits for the divider: the least bound, the sign of the greatest, and whether there are
  // sides. A vector's lowest word is the latest.
  localparam int W = 18 + U;
  logic [Last-1:0] valid;
  logic [Last*W-1:0] line;
  logic [15:0] most_half;
  always_ff @(posedge clk) begin
    if (en) begin
      valid <= {valid[Last-2:0], s_valid};
      line <= {line[(Last-1)*W-1:0], s_user, s_sides, s_most[15] && s_most[14:0] != 15'd0, s_least};
      most_half <= s_most;
    end
    if (rst) valid <= '0;
  end
  assign m_valid = valid[Last-1];
  assign m_user = line[(Last-1)*W+18+:U];

  logic [36:0] first_least, first_most, least, last_least, width, steps, inverse, crossing;
  from_f16 opening_first (
      .half(line[15:0]),
      .open(first_least)
  );
  from_f16 opening_most (
      .half(most_half),
      .open(first_most)
  );
  from_int opening_steps (
      .value({3'd0, Codes} - 9'd1),
      .open (steps)
  );
  fadd subtract (
      .clk,
      .en,
      .a(first_most),
      .b({first_least[36:35], !first_least[34], first_least[33:0]}),
      .y(width)
  );
  fdiv_pipe divide_steps (
      .clk,
      .en,
      .a(steps),
      .b(width),
      .y(inverse)
  );
  from_f16 opening_least (
      .half(line[(Quotient-1)*W+:16]),
      .open(least)
  );
  fmul multiply (
      .clk,
      .en,
      .a({least[36:35], !least[34], least[33:0]}),
      .b(inverse),
      .y(crossing)
  );
  from_f16 opening_last (
      .half(line[(Last-1)*W+:16]),
      .open(last_least)
  );
  assign m_least = last_least;

  // Quotients wait for the cut.
  logic [110:0] inverses;
  always_ff @(posedge clk) if (en) inverses <= {inverses[73:0], inverse};
  assign m_inverse = inverses[110:74];
  if (STEP) begin : g_step
    logic [36:0] step;
    logic [110:0] waiting;
    fdiv_pipe divide_width (
        .clk,
        .en,
        .a(width),
        .b(steps),
        .y(step)
    );
    always_ff @(posedge clk) if (en) waiting <= {waiting[73:0], step};
    assign m_step = waiting[110:74];
  end else begin : g_no_step
    assign m_step = '0;
  end

  // The crossing rounded up; it is positive where it counts, and at most the number of codes.
  logic [31:0] fixed;
  logic [6:0] above;
  logic sides, is_minus, is_below;
  logic [15:0] half;
  assign {sides, is_below, half} = line[(Crossing-1)*W+:18];
  assign is_minus = half[15] && half[14:0] != 15'd0;
  assign fixed = {8'd0, crossing[23:0]} << (crossing[27:24] + 4'd1);
  always_comb begin
    if (crossing[35]) above = 7'd0;
    else if ($signed(crossing[33:24]) < -10'sd1) above = 7'd1;
    else above = fixed[30:24] + {6'd0, |fixed[23:0]};
  end
  always_ff @(posedge clk)
    if (en) begin
      if (!sides || !is_minus) m_cut <= 6'd0;
      else if (is_below) m_cut <= Codes;
      else if (above < 7'd1) m_cut <= 6'd1;
      else m_cut <= (above > {1'b0, Codes - 6'd1}) ? Codes - 6'd1 : above[5:0];
    end
  logic unused;
  assign unused = ^{crossing[36], crossing[34], fixed[31], line[(Last-1)*W+16+:2]};
endmodule
