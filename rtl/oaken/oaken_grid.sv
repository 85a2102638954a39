// The grid of a group's codes in one token, from its bounds (Oaken §4.2, eq. 2 and 3; the cut is of
// crates/codec/src/oaken.rs): step, inverse step, and the first code of the upper side.
//
// FIVE says that codes have five bits. A group with SIDES is shifted; codes below `cut` are of
// rests below zero.
//
// Interface: `start` takes bounds as halves; `done` is a pulse, and results stay until the next.
// Latency 35 cycles, initiation interval 35.
module oaken_grid #(
    parameter bit FIVE = 1'b1,
    parameter bit SIDES = 1'b1
) (
    input  logic        clk,
    input  logic        rst,
    input  logic        start,
    input  logic [15:0] least_half,
    input  logic [15:0] most_half,
    output logic        done,
    output logic [36:0] least,
    output logic [36:0] step,
    output logic [36:0] inverse,
    output logic [5:0]  cut
);
  localparam logic [5:0] Codes = FIVE ? 6'd32 : 6'd16;

  logic [36:0] open_least, open_most, most, width, steps, crossing;
  logic [5:0] age;
  logic busy, divided, unused_done;

  from_f16 opening_least (
      .half(least_half),
      .open(open_least)
  );
  from_f16 opening_most (
      .half(most_half),
      .open(open_most)
  );
  from_int opening_steps (
      .value({3'd0, Codes} - 9'd1),
      .open (steps)
  );
  fadd subtract (
      .clk,
      .en(1'b1),
      .a(most),
      .b({least[36:35], !least[34], least[33:0]}),
      .y(width)
  );
  fdiv divide_width (
      .clk,
      .rst,
      .start(age == 6'd4),
      .a(width),
      .b(steps),
      .done(divided),
      .y(step)
  );
  fdiv divide_steps (
      .clk,
      .rst,
      .start(age == 6'd4),
      .a(steps),
      .b(width),
      .done(unused_done),
      .y(inverse)
  );
  fmul multiply (
      .clk,
      .en(1'b1),
      .a({least[36:35], !least[34], least[33:0]}),
      .b(inverse),
      .y(crossing)
  );

  // The crossing rounded up; it is positive where it counts, and at most the number of codes.
  logic [31:0] fixed;
  logic [6:0] above;
  logic is_minus, is_below;
  assign is_minus = least[34] && !least[35];
  assign is_below = most[34] && !most[35];
  assign fixed = {8'd0, crossing[23:0]} << (crossing[27:24] + 4'd1);
  always_comb begin
    if (crossing[35]) above = 7'd0;
    else if ($signed(crossing[33:24]) < -10'sd1) above = 7'd1;
    else above = fixed[30:24] + {6'd0, |fixed[23:0]};
  end

  logic [2:0] tail;
  always_ff @(posedge clk) begin
    done <= tail[2];
    tail <= {tail[1:0], divided};
    if (start && !busy) begin
      least <= open_least;
      most <= open_most;
      age <= 6'd1;
      busy <= 1'b1;
    end else if (age != 6'd0) age <= (age == 6'd4) ? 6'd0 : age + 6'd1;
    if (tail[2]) begin
      busy <= 1'b0;
      if (!SIDES || !is_minus) cut <= 6'd0;
      else if (is_below) cut <= Codes;
      else if (above < 7'd1) cut <= 6'd1;
      else cut <= (above > {1'b0, Codes - 6'd1}) ? Codes - 6'd1 : above[5:0];
    end
    if (rst) begin
      age <= '0;
      busy <= 1'b0;
      tail <= '0;
      done <= 1'b0;
    end
  end
  logic unused;
  assign unused = ^{crossing[36], crossing[34], fixed[31]};
endmodule
