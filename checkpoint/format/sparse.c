/* checkpoint/format/sparse.c - bytes of a file in memory, most of which were never written. */
#include "checkpoint/format/sparse.h"

#include "base/stream.h"

#include <string.h>

enum { PAGE = HOTBED_SPARSE_PAGE };

/* Return the position of the first page whose number is not below `number`. */
static size_t place_of(const hotbed_sparse *s, uint64_t number) {
    size_t low = 0, high = s->num;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->pages[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static unsigned char *find(const hotbed_sparse *s, uint64_t number) {
    size_t at = place_of(s, number);
    return at < s->num && s->pages[at].number == number ? s->pages[at].bytes : NULL;
}

/* Return the page with this number, and create it if it does not exist. NULL: there is no
 * memory. */
static unsigned char *find_or_make(hotbed_sparse *s, uint64_t number) {
    unsigned char *bytes = find(s, number);
    if (bytes != NULL || !hotbed_reserve(&s->pages, s->num, 1, &s->capacity, sizeof *s->pages))
        return bytes;
    bytes = hotbed_new(PAGE);
    if (bytes == NULL)
        return NULL;
    size_t at = place_of(s, number);
    memmove(s->pages + at + 1, s->pages + at, (s->num - at) * sizeof *s->pages);
    s->pages[at] = (hotbed_sparse_page){.number = number, .bytes = bytes};
    s->num++;
    return bytes;
}

/* Return how many of the bytes are in the same page as the first one. */
static size_t in_page(uint64_t offset, uint64_t bytes) {
    uint64_t space = PAGE - offset % PAGE;
    return (size_t)(bytes < space ? bytes : space);
}

bool hotbed_sparse_write(hotbed_sparse *s, uint64_t offset, const void *data, uint64_t bytes) {
    const unsigned char *from = data;
    while (bytes > 0) {
        size_t n = in_page(offset, bytes);
        unsigned char *page = find_or_make(s, offset / PAGE);
        if (page == NULL)
            return false;
        memcpy(page + offset % PAGE, from, n);
        from += n;
        offset += n;
        bytes -= n;
    }
    return true;
}

void hotbed_sparse_read(const hotbed_sparse *s, uint64_t offset, void *data, uint64_t bytes) {
    unsigned char *to = data;
    while (bytes > 0) {
        size_t n = in_page(offset, bytes);
        const unsigned char *page = find(s, offset / PAGE);
        if (page != NULL)
            memcpy(to, page + offset % PAGE, n);
        else
            memset(to, 0, n);
        to += n;
        offset += n;
        bytes -= n;
    }
}

bool hotbed_sparse_is_zero(const hotbed_sparse *s, uint64_t offset) {
    for (size_t at = place_of(s, offset / PAGE); at < s->num; at++) {
        size_t first = s->pages[at].number == offset / PAGE ? (size_t)(offset % PAGE) : 0;
        for (size_t i = first; i < PAGE; i++)
            if (s->pages[at].bytes[i] != 0)
                return false;
    }
    return true;
}

void hotbed_sparse_free(hotbed_sparse *s) {
    for (size_t i = 0; i < s->num; i++)
        hotbed_delete(s->pages[i].bytes);
    hotbed_delete(s->pages);
    *s = (hotbed_sparse){.num = 0};
}
