// Prints the tokens that llama.cpp makes of texts, those at the beginning included: tokens FILE TEXT..
#include "llama.h"
#include <cstdio>
#include <cstring>
#include <vector>

int main(int count, char** words) {
    if (count < 3) return 2;
    llama_backend_init();
    llama_log_set([](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_WARN) fputs(text, stderr);
    }, nullptr);
    llama_model_params parameters = llama_model_default_params();
    parameters.vocab_only = true;
    llama_model* model = llama_model_load_from_file(words[1], parameters);
    if (!model) return 1;
    const llama_vocab* vocabulary = llama_model_get_vocab(model);
    for (int at = 2; at < count; at++) {
        const int length = (int)strlen(words[at]);
        std::vector<llama_token> tokens(length + 8);
        const int found = llama_tokenize(vocabulary, words[at], length, tokens.data(), (int)tokens.size(), true, true);
        if (found < 0) return 1;
        for (int token = 0; token < found; token++) printf("%d ", tokens[token]);
        printf("\n");
    }
}
