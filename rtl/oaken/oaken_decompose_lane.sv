// Group of one value, and the value less its group's bound (Oaken §4.2 and §5.2, decomposer).
//
// Interface: a stalling pipeline, which moves while `en`. The value is a half, or with `bf16` a bfloat. Thresholds as open numbers: the outer
// interval's ends, then the inner one's. Group 0 is outside both, 1 between them, 2 inside.
// Latency 4 cycles, initiation interval 1.
module oaken_decompose_lane (
    input  logic         clk,
    input  logic         en,
    input  logic         bf16,
    input  logic [15:0]  value,
    input  logic [147:0] thresholds,
    output logic [1:0]   group,
    output logic [36:0]  rest
);
  logic [36:0] open, opened, bound, minus_bound;
  logic [3:0] outside;
  logic [1:0] sort;
  logic [1:0] groups[0:3];

  from_16 opening (
      .bf16,
      .value,
      .open
  );
  // Below the lower end, above the upper one.
  for (genvar k = 0; k < 4; k++) begin : g_end
    logic [36:0] threshold;
    assign threshold = thresholds[k*37+:37];
    open_less compare (
        .a((k % 2 == 0) ? open : threshold),
        .b((k % 2 == 0) ? threshold : open),
        .less(outside[k])
    );
  end
  always_comb begin
    if (outside[0]) {sort, bound} = {2'd0, thresholds[0+:37]};
    else if (outside[1]) {sort, bound} = {2'd0, thresholds[37+:37]};
    else if (outside[2]) {sort, bound} = {2'd1, thresholds[74+:37]};
    else if (outside[3]) {sort, bound} = {2'd1, thresholds[111+:37]};
    else {sort, bound} = {2'd2, 37'h0800000000};
  end

  always_ff @(posedge clk)
    if (en) begin
      opened <= open;
      minus_bound <= {bound[36:35], !bound[34], bound[33:0]};
    end
  fadd subtract (
      .clk,
      .en,
      .a(opened),
      .b(minus_bound),
      .y(rest)
  );
  for (genvar k = 0; k < 4; k++) begin : g_delay
    logic [1:0] group_q;
    always_ff @(posedge clk) if (en) group_q <= (k == 0) ? sort : groups[(k == 0) ? 0 : k-1];
    assign groups[k] = group_q;
  end
  assign group = groups[3];
endmodule
