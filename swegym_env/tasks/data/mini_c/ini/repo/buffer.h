#ifndef BUFFER_H
#define BUFFER_H

#include <stddef.h>

/* A text that grows. All zero is an empty one; the owner frees `data`. */
struct buffer {
    char *data;
    size_t length, capacity;
};

/* Appends bytes. Returns 0, or -1 if there is no memory; the buffer is then unchanged. */
int buffer_add(struct buffer *buffer, const char *bytes, size_t length);

/* The content with a zero byte after it, which is not counted; NULL if there is no memory. */
const char *buffer_text(struct buffer *buffer);

#endif
