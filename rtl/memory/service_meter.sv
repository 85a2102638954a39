// Queue depths and service times of four engines, for the weights of wrr_weights.sv (SpecKV §3.5.5,
// eq. 5).
//
// A request is served from the cycle in which the memory front end takes it to the cycle in which
// the engine takes its answer. The depth counts requests that wait and those that are under way, at
// most 255.
//
// Interface: `asks` are requests offered, `takes` those taken in this cycle, with tags that are
// unique among an engine's open requests; `answers` are answers taken. `served` is a pulse with the
// cycles of a request, modulo 2^16.
// Latency 1 cycle, initiation interval 1.
module service_meter #(
    parameter int T = 4
) (
    input  logic           clk,
    input  logic           rst,
    input  logic [3:0]     asks,
    input  logic [3:0]     takes,
    input  logic [4*T-1:0] ask_tags,
    input  logic [3:0]     answers,
    input  logic [4*T-1:0] answer_tags,
    output logic [31:0]    depths,
    output logic [3:0]     served,
    output logic [63:0]    cycles
);
  logic [15:0] now;
  always_ff @(posedge clk) begin
    now <= now + 16'd1;
    if (rst) now <= '0;
  end

  for (genvar e = 0; e < 4; e++) begin : g_engine
    logic [15:0] begun[0:(1<<T)-1];
    logic [7:0] open;
    logic waits;
    logic [7:0] depth;
    logic one_served;
    logic [15:0] one_cycles;
    assign waits = asks[e] && !takes[e];
    always_ff @(posedge clk) begin
      if (takes[e]) begun[ask_tags[e*T+:T]] <= now;
      open <= open + {7'd0, takes[e]} - {7'd0, answers[e]};
      depth <= open + {7'd0, waits};
      one_served <= answers[e];
      one_cycles <= now - begun[answer_tags[e*T+:T]];
      if (rst) begin
        open <= '0;
        depth <= '0;
        one_served <= 1'b0;
      end
    end
    assign depths[e*8+:8] = depth;
    assign served[e] = one_served;
    assign cycles[e*16+:16] = one_cycles;
  end
endmodule
