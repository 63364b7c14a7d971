"""How an answer is judged: oracle, yardsticks, errors, verdict."""
