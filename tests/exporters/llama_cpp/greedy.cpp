// Generates tokens greedily with llama.cpp on the CPU: greedy FILE COUNT TOKEN..
#include "llama.h"
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int count, char** words) {
    if (count < 4) return 2;
    llama_backend_init();
    llama_log_set([](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_WARN) fputs(text, stderr);
    }, nullptr);
    llama_model* model = llama_model_load_from_file(words[1], llama_model_default_params());
    if (!model) return 1;
    llama_context_params parameters = llama_context_default_params();
    parameters.n_ctx = 256;
    parameters.n_threads = parameters.n_threads_batch = 1;
    parameters.type_k = parameters.type_v = GGML_TYPE_F32;
    llama_context* context = llama_init_from_model(model, parameters);
    if (!context) return 1;
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::vector<llama_token> tokens;
    for (int at = 3; at < count; at++) tokens.push_back(atoi(words[at]));
    for (int left = atoi(words[2]); left > 0; left--) {
        if (llama_decode(context, llama_batch_get_one(tokens.data(), (int)tokens.size()))) return 1;
        const float* logits = llama_get_logits_ith(context, -1);
        int best = 0;
        for (int at = 1; at < vocabulary; at++) {
            if (logits[at] > logits[best]) best = at;
        }
        printf("%d ", best);
        tokens = {best};
    }
    printf("\n");
}
