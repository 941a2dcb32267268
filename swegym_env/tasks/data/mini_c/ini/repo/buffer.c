#include "buffer.h"

#include <stdlib.h>
#include <string.h>

static int reserve(struct buffer *buffer, size_t needed)
{
    if (needed <= buffer->capacity)
        return 0;
    size_t capacity = buffer->capacity ? buffer->capacity : 32;
    while (capacity < needed)
        capacity *= 2;
    char *data = realloc(buffer->data, capacity);
    if (!data)
        return -1;
    buffer->data = data;
    buffer->capacity = capacity;
    return 0;
}

int buffer_add(struct buffer *buffer, const char *bytes, size_t length)
{
    if (reserve(buffer, buffer->length + length) != 0)
        return -1;
    if (length > 0)
        memcpy(buffer->data + buffer->length, bytes, length);
    buffer->length += length;
    return 0;
}

const char *buffer_text(struct buffer *buffer)
{
    if (reserve(buffer, buffer->length + 1) != 0)
        return NULL;
    buffer->data[buffer->length] = '\0';
    return buffer->data;
}
