// The grids of a token's three groups, in two pipelines as the quantizers of Oaken §5.2: one of the
// inliers, the other of the outliers, the outer group before the inner one.
//
// A token has two beats or more, as a head has whole blocks of 64 channels. So one token in two
// cycles is enough for a stream of one beat a cycle.
//
// Interface: a stalling pipeline, which moves while `en`. Bounds of groups 0, 1 and 2 in, each the
// least and then the greatest; grids of these groups out, as of oaken_grid.sv. U bits travel
// beside them.
// Latency 35 cycles, initiation interval 2.
module oaken_grids #(
    parameter bit STEP = 1'b1,
    parameter int U = 1
) (
    input  logic         clk,
    input  logic         rst,
    input  logic         en,
    input  logic         s_valid,
    output logic         s_ready,
    input  logic [95:0]  s_bounds,
    input  logic [U-1:0] s_user,
    output logic         m_valid,
    output logic [110:0] m_least,
    output logic [110:0] m_step,
    output logic [110:0] m_inverse,
    output logic [17:0]  m_cuts,
    output logic [U-1:0] m_user
);
  // The inner group follows its outer one.
  logic second;
  logic [U-1:0] user;
  logic [31:0] inner;
  assign s_ready = en && !second;
  always_ff @(posedge clk) begin
    if (en) begin
      second <= s_valid && !second;
      if (!second) {user, inner} <= {s_user, s_bounds[95:64]};
    end
    if (rst) second <= 1'b0;
  end

  localparam int GridBits = 37 + 37 + 37 + 6;
  logic out_valid, out_inner, unused_valid, unused_user;
  logic [GridBits-1:0] outlier, inlier, outer_q, inlier_q;
  oaken_grid #(
      .FIVE(1'b1),
      .STEP(STEP),
      .U(U + 1)
  ) of_outliers (
      .clk,
      .rst,
      .en,
      .s_valid(s_valid || second),
      .s_sides(!second),
      .s_least(second ? inner[15:0] : s_bounds[15:0]),
      .s_most(second ? inner[31:16] : s_bounds[31:16]),
      .s_user({second, user}),
      .m_valid(out_valid),
      .m_least(outlier[116:80]),
      .m_step(outlier[79:43]),
      .m_inverse(outlier[42:6]),
      .m_cut(outlier[5:0]),
      .m_user({out_inner, m_user})
  );
  oaken_grid #(
      .FIVE(1'b0),
      .STEP(STEP)
  ) of_inliers (
      .clk,
      .rst,
      .en,
      .s_valid,
      .s_sides(1'b1),
      .s_least(s_bounds[47:32]),
      .s_most(s_bounds[63:48]),
      .s_user(1'b0),
      .m_valid(unused_valid),
      .m_least(inlier[116:80]),
      .m_step(inlier[79:43]),
      .m_inverse(inlier[42:6]),
      .m_cut(inlier[5:0]),
      .m_user(unused_user)
  );
  // The first two wait for the third.
  always_ff @(posedge clk) if (en) {outer_q, inlier_q} <= {outlier, inlier};
  assign m_valid = out_valid && out_inner;
  assign m_least = {outlier[116:80], inlier_q[116:80], outer_q[116:80]};
  assign m_step = {outlier[79:43], inlier_q[79:43], outer_q[79:43]};
  assign m_inverse = {outlier[42:6], inlier_q[42:6], outer_q[42:6]};
  assign m_cuts = {outlier[5:0], inlier_q[5:0], outer_q[5:0]};
endmodule
